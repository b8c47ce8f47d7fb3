// The page works without this file. It pauses updates, counts down, draws charts and moves the window of the picture.
"use strict";
(() => {
  const pause = document.getElementById("pause");
  const live = document.getElementById("live");
  const charts = new Map();
  let paused = false;

  // ── updates ─────────────────────────────────────────────────────────────────────────────────────────────────────
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume" : "Pause";
  });
  // A refresh would take away what is being selected, and a page that nobody sees needs none.
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    const polled = event.detail.elt.id === "page";
    const selecting = String(window.getSelection()).length > 0;
    if (polled && (paused || document.hidden || selecting)) event.preventDefault();
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    document.body.classList.toggle("stale", !event.detail.successful);
  });
  document.body.addEventListener("htmx:sendError", () => document.body.classList.add("stale"));
  document.body.addEventListener("htmx:afterSettle", settle);

  function settle() {
    const page = document.getElementById("page");
    if (live.textContent !== page.dataset.verdict) live.textContent = page.dataset.verdict;
    drawCharts();
    countDown();
    followLine();
  }

  // ── back-off ────────────────────────────────────────────────────────────────────────────────────────────────────
  function countDown() {
    for (const element of document.querySelectorAll("[data-until]")) {
      const seconds = Math.round((Date.parse(element.dataset.until) - Date.now()) / 1000);
      const minutes = Math.floor(seconds / 60);
      const text = minutes > 0 ? `in ${minutes} min ${seconds % 60} s` : `in ${seconds} s`;
      element.textContent = seconds > 0 ? text : "now";
    }
  }
  window.setInterval(countDown, 1000);

  // ── charts ──────────────────────────────────────────────────────────────────────────────────────────────────────
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shades = ["--muted", "--accent"];

  function options(element, lines) {
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    return {
      width: element.clientWidth || 600,
      height: 180,
      legend: { live: false },
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.05] } },
      axes: [axis, { ...axis, size: 64, values: (_, values) => values.map((v) => v.toLocaleString("en")) }],
      series: [
        {},
        ...lines.map((label, index) => ({
          label,
          width: 1.5,
          stroke: colour(lines.length === 1 ? "--accent" : shades[index]),
          fill: index === lines.length - 1 ? colour("--accent-faint") : undefined,
          points: { show: false },
        })),
      ],
    };
  }

  async function drawCharts() {
    for (const element of document.querySelectorAll(".chart")) {
      const now = Date.now();
      const known = charts.get(element.id);
      if (known && known.element === element && now - known.at < 5000) continue;
      charts.set(element.id, { ...known, element, at: now, plot: known?.element === element ? known.plot : undefined });
      try {
        const answer = await fetch(element.dataset.series, { credentials: "same-origin" });
        if (!answer.ok) continue;
        const found = await answer.json();
        const lines = element.dataset.lines.split(",");
        const data = [found.at, ...lines.map((name) => found[name])];
        const entry = charts.get(element.id);
        if (entry.plot) entry.plot.setData(data);
        else entry.plot = new window.uPlot(options(element, lines), data, element);
      } catch {
        // The next refresh tries again.
      }
    }
  }
  function redraw() {
    for (const { plot } of charts.values()) plot?.destroy();
    charts.clear();
    drawCharts();
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let resizing;
  window.addEventListener("resize", () => {
    window.clearTimeout(resizing);
    resizing = window.setTimeout(redraw, 200);
  });

  // ── the picture ─────────────────────────────────────────────────────────────────────────────────────────────────
  function show(first, last) {
    const line = document.getElementById("line");
    const width = Math.max(10, Math.round(last - first + 1));
    const begin = Math.max(1, Math.round(first));
    const address = `${line.dataset.path}?from=${begin}&to=${begin + width - 1}`;
    history.replaceState(null, "", address);
    window.htmx.ajax("GET", address, { target: "#page", select: "#page", swap: "outerHTML" });
  }
  function move(line, factor, shift, around = 0.5) {
    const [first, last] = [Number(line.dataset.first), Number(line.dataset.last)];
    const width = last - first + 1;
    const at = first + width * around;
    const begin = at - width * factor * around + width * shift;
    show(begin, begin + width * factor - 1);
  }
  const keys = { "+": [0.5, 0], "=": [0.5, 0], "-": [2, 0], ArrowLeft: [1, -0.25], ArrowRight: [1, 0.25] };
  function followLine() {
    const line = document.getElementById("line");
    if (!line || line.dataset.ready) return;
    line.dataset.ready = "true";
    line.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "0") document.getElementById("zoom-all").click();
      else if (keys[event.key]) move(line, ...keys[event.key]);
      else return;
      event.preventDefault();
    });
    line.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.shiftKey) return; // otherwise the page scrolls, as everywhere
        event.preventDefault();
        const box = line.getBoundingClientRect();
        move(line, event.deltaY > 0 ? 1.5 : 1 / 1.5, 0, (event.clientX - box.left) / box.width);
      },
      { passive: false },
    );
    let grabbed;
    line.addEventListener("pointerdown", (event) => { grabbed = event.clientX; });
    line.addEventListener("pointerup", (event) => {
      const by = grabbed === undefined ? 0 : event.clientX - grabbed;
      grabbed = undefined;
      if (Math.abs(by) > 8) move(line, 1, -by / line.getBoundingClientRect().width);
    });
  }

  settle();
})();
