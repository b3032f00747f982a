"use strict";
// Outputs before and after training: filter, order and word-level differences.
const PAGE = 20;
const MOST_CELLS = 1500000; // of the table that finds the longest common subsequence of two texts

// [kind, words]: " " in both, "-" only in the first, "+" only in the second
function diffWords(first, second) {
  const a = first.match(/\s+|[^\s]+/g) || [], b = second.match(/\s+|[^\s]+/g) || [];
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const x = a.slice(head, a.length - tail), y = b.slice(head, b.length - tail);
  const parts = [];
  const add = (kind, words) => {
    if (!words.length) return;
    const last = parts[parts.length - 1];
    if (last && last[0] === kind) last[1] += words.join("");
    else parts.push([kind, words.join("")]);
  };
  add(" ", a.slice(0, head));
  if (x.length * y.length > MOST_CELLS) { add("-", x); add("+", y); } else common(x, y, add);
  add(" ", a.slice(a.length - tail));
  return parts;
}

function common(x, y, add) {
  const width = y.length + 1;
  const best = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i -= 1) {
    for (let j = y.length - 1; j >= 0; j -= 1) {
      best[i * width + j] = x[i] === y[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  let i = 0, j = 0;
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) { add(" ", [x[i]]); i += 1; j += 1; }
    else if (j < y.length && (i === x.length || best[i * width + j + 1] > best[(i + 1) * width + j])) { add("+", [y[j]]); j += 1; }
    else { add("-", [x[i]]); i += 1; }
  }
}

function marked(parts, side) {
  const box = make("p", { class: "text", dir: "auto" });
  for (const [kind, words] of parts) {
    if (kind === " ") box.append(plain(words));
    else if (kind === side) box.append(make(side === "-" ? "del" : "ins", { text: words }));
  }
  if (!box.textContent) box.append(make("span", { class: "quiet", text: "(empty)" }));
  return box;
}

function startOutputs() {
  const tools = byId("output-tools");
  if (!tools) return;
  const { inputs, runs } = data.outputs;
  const field = tools.elements;
  const lower = inputs.map(() => null);
  let shown = [], limit = PAGE;
  fill(field.run, runs.map((run) => run.label));
  byId("run-choice").hidden = runs.length < 2;
  const preferred = runs.findLastIndex((run) => run.rows.some((row) => row[1] !== null));
  field.run.value = Math.max(0, preferred);

  function chooseRun() {
    const run = runs[field.run.value];
    const hasBefore = run.rows.some((row) => row[1] !== null);
    const hasReference = run.rows.some((row) => inputs[row[0]][1].length);
    fill(field.metric, run.metrics);
    field.against.options[0].textContent = run.start;
    field.against.options[0].disabled = !hasBefore;
    field.against.options[1].disabled = !hasReference;
    field.against.value = hasBefore ? "before" : "reference";
    field.order.value = hasBefore ? "loss" : "low";
    update();
  }
  const search = (text) => text.toLowerCase();
  function matches(row, words) {
    if (!words) return true;
    lower[row[0]] ??= search(inputs[row[0]][0] + "\n" + inputs[row[0]][1].join("\n"));
    return lower[row[0]].includes(words) || search(row[2]).includes(words) || (row[1] !== null && search(row[1]).includes(words));
  }
  function update() {
    const run = runs[field.run.value], metric = Number(field.metric.value), words = search(field.filter.value.trim());
    const byBefore = field.against.value === "before";
    const gain = (row) => row[3][metric] === null || row[4][metric] === null ? null : row[4][metric] - row[3][metric];
    const key = { loss: gain, gain: (row) => gain(row) === null ? null : -gain(row), low: (row) => row[4][metric], high: (row) => row[4][metric] === null ? null : -row[4][metric] }[field.order.value];
    shown = run.rows.filter((row) => matches(row, words));
    if (key) {
      const keyed = shown.map((row, n) => [key(row), n, row]);
      keyed.sort((a, b) => (a[0] === null) - (b[0] === null) || a[0] - b[0] || a[1] - b[1]);
      shown = keyed.map((entry) => entry[2]);
    }
    limit = PAGE;
    byId("worst").setAttribute("aria-pressed", String(byBefore && field.order.value === "loss" && metric === 0 && !words));
    byId("worst").disabled = !run.rows.some((row) => row[1] !== null);
    paint();
  }
  function paint() {
    const list = byId("output-list"), run = runs[field.run.value];
    const have = limit === PAGE ? 0 : list.childElementCount;
    const rows = shown.slice(have, limit).map((row) => card(row, run));
    if (have) list.append(...rows);
    else list.replaceChildren(...rows);
    const metric = Number(field.metric.value), both = shown.filter((row) => row[1] !== null).length;
    byId("output-count").textContent = shown.length
      ? `${Math.min(limit, shown.length).toLocaleString("en")} of ${shown.length.toLocaleString("en")} outputs shown` + (both < shown.length ? `; ${both.toLocaleString("en")} of them have an output of the ${run.start}` : "")
        + (field.order.value === "loss" && !(shown[0][4][metric] < shown[0][3][metric]) ? `; no output lost ${run.metrics[metric]}` : "")
      : "No output matches this filter.";
    byId("output-more").hidden = limit >= shown.length;
    byId("output-more").textContent = `Show ${Math.min(PAGE, shown.length - limit)} more`;
  }
  function card(row, run) {
    const [number, before, after, old, now] = row, [prompt, references] = inputs[number];
    const against = field.against.value === "before" && before !== null ? before : field.against.value === "reference" ? references[0] : undefined;
    const parts = against === undefined ? [[" ", after]] : diffWords(against, after);
    const name = field.against.value === "before" ? run.start : "Reference";
    const left = make("div", {}, make("h4", { text: name }), against === undefined ? make("p", { class: "text quiet", text: "not decoded for this input" }) : marked(parts, "-"));
    const right = make("div", {}, make("h4", { text: run.label }), marked(parts, "+"));
    const extra = field.against.value === "before" && references.length
      ? [make("details", { class: "more" }, make("summary", { text: references.length > 1 ? `${references.length} references` : "Reference" }), ...references.map((text) => make("p", { class: "text", dir: "auto", text })))] : [];
    return make("li", { class: "card output" }, make("h4", { class: "small-title", text: "Input" }), make("p", { class: "prompt", dir: "auto", text: prompt }),
      make("div", { class: "texts" }, left, right), chips(run, old, now), ...extra);
  }
  function chips(run, old, now) {
    return make("div", { class: "chips" }, ...run.metrics.map((name, n) => {
      const change = old[n] === null || now[n] === null ? null : now[n] - old[n];
      const kind = !change || !(run.rewards.includes(name) || name === "reward") ? "" : change > 0 ? "better" : "worse";
      const told = old[n] === null ? [make("b", { text: show(now[n]) })] : [`${show(old[n])} → `, make("b", { text: show(now[n]), class: kind }), change ? ` (${signed(change)})` : ""];
      return make("span", {}, name + " ", ...told);
    }));
  }
  field.run.addEventListener("change", chooseRun);
  for (const name of ["against", "metric", "order"]) field[name].addEventListener("change", update);
  let waiting = 0;
  field.filter.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(update, 120); });
  tools.addEventListener("submit", (event) => event.preventDefault());
  byId("worst").addEventListener("click", () => { Object.assign(field.order, { value: "loss" }); field.metric.value = 0; field.filter.value = ""; field.against.value = "before"; update(); });
  byId("output-more").addEventListener("click", () => { limit += PAGE; paint(); });
  chooseRun();
}
started.push(startOutputs);
