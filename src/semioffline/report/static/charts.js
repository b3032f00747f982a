"use strict";
// Curves of the log, and reward against cost in a comparison.
const COLORS = 8;
const charts = [];

function colorOf(n) {
  return css("--c" + (n % COLORS));
}

function axis(extra = {}) {
  const line = { stroke: () => css("--line"), width: 1 };
  return { stroke: () => css("--quiet"), grid: line, ticks: { ...line, size: 5 }, font: "12px system-ui, sans-serif", ...extra };
}

function brief(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return show(value / 1e6) + "M";
  return size >= 1e4 ? show(value / 1e3) + "k" : show(value);
}

// lines: {label, xs, ys, color, dots, band}; band: [low, high], next to ys
function draw(box, title, note, lines, options = {}) {
  const tables = [];
  const series = [{ label: options.x || "step", value: (_, value) => value === null ? "–" : brief(value) }];
  const bands = [];
  const hidden = { stroke: "transparent", width: 0, points: { show: false }, label: "", value: () => "" };
  for (const line of lines) {
    const stroke = () => colorOf(line.color);
    tables.push([line.xs, line.ys, ...(line.band || [])]);
    series.push({
      label: plain(line.label), stroke, width: line.dots ? 2 : 1.25, dash: line.dash, spanGaps: true,
      points: { show: Boolean(line.dots) && line.xs.length < 60, size: 6, fill: stroke },
      value: (_, value) => show(value), alpha: line.dots ? 1 : 0.75,
    });
    if (line.band) {
      bands.push({ series: [series.length + 1, series.length], fill: () => colorOf(line.color) + "26" });
      series.push({ ...hidden, scale: "y" }, { ...hidden, scale: "y" });
    }
  }
  const joined = uPlot.join(tables.map((table) => sorted(table)));
  const height = options.height || 200;
  const scales = { x: { time: false, distr: options.log ? 3 : 1 } };
  if (options.range) scales.y = { range: options.range };
  const plot = new uPlot({
    width: Math.max(240, box.clientWidth - 30), height, series, bands, scales,
    legend: { live: lines.length <= 12, show: lines.length <= 12 },
    cursor: { focus: { prox: 24 }, points: { size: 7 }, sync: options.log ? undefined : { key: "x" } },
    axes: [axis({ size: 30, values: (_, splits) => splits.map((each) => each === null ? "" : brief(each)) }), axis({ size: 58, values: (_, splits) => splits.map(brief) })],
  }, joined);
  plot.root.querySelectorAll(".u-series").forEach((row, n) => { if (series[n].stroke === "transparent") row.style.display = "none"; });
  const picture = make("div", { tabindex: 0, role: "img", "aria-label": describe(title, lines) }, plot.root);
  picture.addEventListener("keydown", (event) => moveCursor(event, plot, joined));
  box.replaceChildren(...(title ? [make("h4", { text: title })] : []), ...(note ? [make("p", { class: "note", text: note })] : []), picture);
  charts.push({ plot, box, height });
  return plot;
}

function sorted(table) {
  const order = table[0].map((x, n) => n).filter((n) => table[0][n] !== null).sort((a, b) => table[0][a] - table[0][b]);
  const single = order.filter((n, place) => place === 0 || table[0][n] !== table[0][order[place - 1]]);
  return table.map((column) => single.map((n) => column[n]));
}

function describe(title, lines) {
  const told = lines.map((line) => {
    const known = line.ys.filter((value) => value !== null);
    return known.length ? `${line.label}: from ${show(known[0])} to ${show(known[known.length - 1])}, between ${show(Math.min(...known))} and ${show(Math.max(...known))}` : "";
  });
  return plain(`${title}. ${told.filter(Boolean).slice(0, 12).join("; ")}`);
}

function moveCursor(event, plot, joined) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const last = joined[0].length - 1;
  const at = plot.cursor.idx === null || plot.cursor.idx === undefined ? (step > 0 ? 0 : last) : Math.min(last, Math.max(0, plot.cursor.idx + step));
  plot.setCursor({ left: plot.valToPos(joined[0][at], "x"), top: plot.over.clientHeight / 2 });
}

function startCurves() {
  const found = data.curves;
  if (!byId("charts")) return;
  const colors = new Map();
  for (const run of found.runs) {
    const family = run.label.replace(/, seed \d+$/, "");
    if (!colors.has(family)) colors.set(family, colors.size);
    run.family = family;
  }
  const off = new Set();
  const select = byId("curve-x");
  byId("run-toggles").replaceChildren(...[...colors].map(([family, color]) => make("button", {
    type: "button", class: "run", "aria-pressed": "true",
    on: { click: (event) => {
      const button = event.currentTarget;
      if (off.delete(family)) button.setAttribute("aria-pressed", "true");
      else { off.add(family); button.setAttribute("aria-pressed", "false"); }
      redraw();
    } },
  }, make("span", { class: "run-dot", style: { background: `var(--c${color % COLORS})` } }), family)));
  const groups = [...new Set(found.charts.map((chart) => chart.group))];
  const parts = groups.map((group, n) => {
    const own = found.charts.filter((chart) => chart.group === group);
    const grid = make("div", { class: "grid" });
    const part = make("details", { class: "chart-group", open: n < 2, on: { toggle: () => part.open && paint(part) } },
      make("summary", { text: `${group} (${own.length})` }), grid);
    Object.assign(part, { own, grid });
    return part;
  });
  byId("charts").replaceChildren(...parts);
  byId("constant").textContent = found.constant.length ? plain("Always the same: " + found.constant.map(([name, value]) => `${name} ${show(value)}`).join(", ") + ".") : "";

  function linesOf(chart) {
    const lines = [];
    for (const run of found.runs.filter((each) => !off.has(each.family))) {
      for (const [part, name] of chart.lines) {
        const ys = run[part].values[name];
        if (!ys || !ys.some((value) => value !== null)) continue;
        const kind = chart.lines.length > 1 ? (part === "eval" ? ", validation" : ", samples") : "";
        const label = found.runs.length > 1 ? run.label + kind : kind ? kind.slice(2) : chart.title;
        lines.push({ label, xs: run[part][select.value], ys: ys.map((y) => y === null ? null : y * (part === "eval" || chart.factor === 1 ? chart.factor : 100)), color: colors.get(run.family), dots: part === "eval" });
      }
    }
    return lines;
  }
  function paint(part) {
    if (part.dataset.painted) return;
    part.dataset.painted = "yes";
    const boxes = part.own.map(() => make("div", { class: "chart" }));
    part.grid.replaceChildren(...boxes);
    part.own.forEach((chart, n) => {
      const lines = linesOf(chart);
      if (lines.length) draw(boxes[n], chart.title, chart.note, lines, { x: select.value });
      else boxes[n].replaceChildren(make("h4", { text: chart.title }), make("p", { class: "quiet", text: "No run to show." }));
    });
  }
  function redraw() {
    for (const part of parts) {
      forget(part);
      delete part.dataset.painted;
      if (part.open) paint(part);
    }
  }
  select.addEventListener("change", redraw);
  const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
    seen.unobserve(entry.target);
    if (entry.target.open) paint(entry.target);
  }), { rootMargin: "600px" });
  parts.forEach((part) => seen.observe(part));
  addEventListener("beforeprint", () => parts.forEach(paint));
}

function forget(part) {
  for (let n = charts.length - 1; n >= 0; n -= 1) {
    if (part.contains(charts[n].box)) charts.splice(n, 1)[0].plot.destroy();
  }
}

function startComparisons() {
  data.comparisons.forEach((curves, n) => {
    const box = byId("comparison-" + n);
    const select = document.querySelector(`select.cost[data-comparison="${n}"]`);
    if (curves.some((curve) => curve.seconds === null)) select.querySelector('[value="seconds"]').disabled = true;
    const paint = () => { forget(box.parentElement); drawComparison(box, curves, select); };
    select.addEventListener("change", paint);
    paint();
  });
}

function drawComparison(box, curves, select) {
  const start = curves.find((curve) => curve.is_start) || curves[0];
  const trained = curves.filter((curve) => !curve.is_start);
  const costs = trained.flatMap((curve) => curve[select.value] || []);
  const end = Math.max(...costs, 1);
  const positive = costs.filter((cost) => cost > 0);
  const log = select.value === "passes" && end > 10 * Math.min(...positive, end);
  const first = log ? Math.min(...positive) / 2 : 0;  // the place of 0 on an axis that has none
  const flat = (key) => [start[key][0], start[key][0]];
  const lines = [{ label: "initial checkpoint", xs: [first, end], ys: flat("reward"), color: 7, dash: [6, 5], dots: true, band: [flat("low"), flat("high")] }];
  trained.forEach((curve, n) => lines.push({
    label: curve.label, xs: curve[select.value].map((x) => log && x === 0 ? first : x), ys: curve.reward, color: n, dots: true, band: [curve.low, curve.high],
  }));
  const lows = curves.flatMap((curve) => curve.low), highs = curves.flatMap((curve) => curve.high);
  const low = Math.min(...lows), high = Math.max(...highs);
  const widest = Math.max(...lows.map((each, n) => highs[n] - each));
  const spare = Math.max(0, Math.max(3 * widest, 0.02 * Math.max(Math.abs(low), Math.abs(high)), 1e-6) - (high - low)) / 2 + 0.04 * (high - low);
  draw(box, "", "", lines, { x: select.selectedOptions[0].text, log, height: 320, range: [low - spare, high + spare] });
}

started.push(startComparisons, startCurves);
document.addEventListener("theme", () => charts.forEach(({ plot }) => plot.redraw(false, true)));
let resizing = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => charts.forEach(({ plot, box, height }) => plot.setSize({ width: Math.max(240, box.clientWidth - 30), height })));
});
