"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const themes = read("themes");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touched = matchMedia("(pointer: coarse)");
  const drawings = read("content");

  function draw() {
    const theme = dark.matches ? "dark" : "light";
    for (const drawing of drawings) {
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

  draw();
  dark.addEventListener("change", draw);
  let [wait, width] = [null, innerWidth];
  addEventListener("resize", () => {
    clearTimeout(wait);
    if (innerWidth !== width) wait = setTimeout(() => { width = innerWidth; draw(); }, 200);
  });
  document.addEventListener("click", ({ target }) => { if (target.dataset?.file) save(target); });
})();
