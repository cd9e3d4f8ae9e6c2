"use strict";
(() => {
  const theme = (text, grid, panel, mark) => {
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, tickcolor: grid, automargin: true };
    return { layout: {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
      font: { color: text, family: "system-ui, sans-serif", size: 13 },
      hoverlabel: { bgcolor: panel, bordercolor: grid, font: { color: text }, align: "left" },
      shapedefaults: { line: { color: mark, width: 1.5, dash: "dash" } },
      annotationdefaults: { font: { color: mark, size: 12 }, bgcolor: panel },
    } };
  };
  // For a light and for a dark page.
  const themes = [
    theme("#1c2430", "#dfe4ea", "#ffffff", "#0f1720"), theme("#e3e8ef", "#333c48", "#191f27", "#f4f7fb"),
  ];
  const scales = {
    worse: [ // the stronger the colour, the less two classes mix; an even mix fades into the page
      [[0, "#8f2d0c"], [0.35, "#e2682a"], [0.7, "#f9bd8d"], [1, "#fbe8d6"]],
      [[0, "#ffb37a"], [0.35, "#cf6423"], [0.7, "#743b19"], [1, "#3a2a21"]],
    ],
    more: [
      [[0, "#f5f8fd"], [0.25, "#a9c8f7"], [0.6, "#3b82f6"], [1, "#142f66"]],
      [[0, "#171d26"], [0.25, "#1f3e74"], [0.6, "#3b82f6"], [1, "#d6e6ff"]],
    ],
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touched = matchMedia("(pointer: coarse)");
  const drawings = JSON.parse(document.getElementById("content").textContent);

  function draw() {
    const shade = Number(dark.matches);
    for (const drawing of drawings) {
      const { name, data, layout, scale } = structuredClone(drawing); // plotly writes into what it is given
      layout.template = themes[shade];
      if (scale) layout.coloraxis.colorscale = scales[scale][shade];
      if (touched.matches) layout.dragmode = false; // a finger scrolls the page
      const box = document.getElementById(name);
      const { tickvals, ticktext } = layout.xaxis;
      if (tickvals) { // as many names as there is room for
        const each = Math.ceil((14 * tickvals.length) / Math.max(1, box.clientWidth - 60));
        layout.xaxis.tickvals = tickvals.filter((_, place) => place % each === 0);
        layout.xaxis.ticktext = ticktext.filter((_, place) => place % each === 0);
      }
      Plotly.react(box, data, layout, { responsive: true, displayModeBar: false, showTips: false });
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
