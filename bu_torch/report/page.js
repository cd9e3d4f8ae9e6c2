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
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touched = matchMedia("(pointer: coarse)");
  const drawings = JSON.parse(document.getElementById("content").textContent);

  function draw() {
    const shade = Number(dark.matches);
    for (const drawing of drawings) {
      const { name, data, layout } = structuredClone(drawing); // plotly writes into what it is given
      layout.template = themes[shade];
      if (touched.matches) layout.dragmode = false; // a finger scrolls the page
      Plotly.react(document.getElementById(name), data, layout, { responsive: true, displayModeBar: false, showTips: false });
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
