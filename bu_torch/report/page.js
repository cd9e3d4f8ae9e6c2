"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const themes = read("themes");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touched = matchMedia("(pointer: coarse)");
  let shown = read("content");

  function draw() {
    const theme = dark.matches ? "dark" : "light";
    for (const drawing of shown.drawings) {
      const { name, data, layout, scales } = structuredClone(drawing); // plotly writes into what it is given
      layout.template = themes[theme];
      if (scales) layout.coloraxis.colorscale = scales[theme];
      if (touched.matches) layout.dragmode = false; // a finger scrolls the page
      const box = document.getElementById(name);
      const { tickvals, ticktext } = layout.xaxis;
      if (tickvals) { // as many names as there is room for
        const each = Math.ceil((14 * tickvals.length) / Math.max(1, box.clientWidth - 60));
        layout.xaxis.tickvals = tickvals.filter((_, place) => place % each === 0);
        layout.xaxis.ticktext = ticktext.filter((_, place) => place % each === 0);
      }
      try {
        Plotly.react(box, data, layout, { responsive: true, displayModeBar: false, showTips: false });
      } catch (error) {
        box.textContent = `This figure could not be drawn: ${error.message}`;
        console.error(error);
      }
    }
    stack();
  }

  // The rows of a table that is wider than its box become blocks of lines.
  function stack() {
    for (const box of document.querySelectorAll(".scroll")) {
      const top = box.scrollTop;
      box.classList.remove("stacked");
      box.classList.toggle("stacked", box.scrollWidth > box.clientWidth + 1);
      box.scrollTop = top;
    }
  }

  // The table of a section as a file; no cell begins as a formula of a spreadsheet does.
  function save(button) {
    const quoted = (cell) => `"${cell.textContent.replace(/^(?=\s*[=+@-])/, "'").replaceAll('"', '""')}"`;
    const rows = [...button.closest("section").querySelectorAll("tr")].map((row) => [...row.cells].map(quoted).join());
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([rows.join("\r\n") + "\r\n"], { type: "text/csv" }));
    link.download = button.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  // Figures are moved into the new page, so that what was zoomed to stays; all else is replaced.
  function replace(fresh) {
    const main = document.querySelector("main");
    const parsed = new DOMParser().parseFromString(fresh.main, "text/html").body;
    for (const box of parsed.querySelectorAll(".plot")) {
      const old = document.getElementById(box.id);
      if (old) { old.style.cssText = box.style.cssText; box.replaceWith(document.adoptNode(old)); }
    }
    const places = [...main.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    const top = scrollY;
    main.replaceChildren(...parsed.childNodes);
    stack();
    main.querySelectorAll(".scroll").forEach((box, i) => { if (places[i]) [box.scrollLeft, box.scrollTop] = places[i]; });
    document.title = new DOMParser().parseFromString(fresh.title, "text/html").body.textContent;
    shown = fresh;
    draw();
    scrollTo(scrollX, top);
  }

  function watch(seconds) {
    const line = document.getElementById("watch");
    let tag = null;
    const say = (text) => { line.hidden = false; line.textContent = text; };
    async function look() {
      try {
        const headers = { Accept: "application/json", ...(tag && { "If-None-Match": tag }) };
        const answer = await fetch(location.pathname, { headers, cache: "no-store" });
        if (answer.status === 200) {
          tag = answer.headers.get("ETag");
          replace(await answer.json());
        } else if (answer.status !== 304) throw new Error(answer.statusText);
        if (shown.hasEnded) return say("The run has ended; this page is no longer refreshed.");
        say(`Watching: refreshed when a check is made. Last look ${new Date().toLocaleTimeString()}.`);
      } catch {
        say(`bu-torch watch does not answer; this is what it said last. Last try ${new Date().toLocaleTimeString()}.`);
      }
      setTimeout(look, 1000 * seconds);
    }
    if (shown.hasEnded) say("The run has ended; this page is not refreshed.");
    else {
      say("Watching: refreshed when a check is made.");
      setTimeout(look, 1000 * seconds);
    }
  }

  draw();
  dark.addEventListener("change", draw);
  let [wait, width] = [null, innerWidth];
  addEventListener("resize", () => {
    clearTimeout(wait);
    if (innerWidth !== width) wait = setTimeout(() => { width = innerWidth; draw(); }, 200);
  });
  document.addEventListener("click", ({ target }) => { if (target.dataset?.file) save(target); });
  const refresh = document.documentElement.dataset.refresh;
  if (refresh) watch(Number(refresh));
})();
