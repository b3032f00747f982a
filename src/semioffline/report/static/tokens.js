"use strict";
// The tokens that were drawn at the masked positions of a static target, with their estimated advantages.
const [POSITION, TOKEN, COUNT, PROBABILITY, ADVANTAGE] = [0, 1, 2, 3, 4];

function visible(token) {
  const text = token.trim();
  return text || (token ? token.replace(/\n/g, "⏎").replace(/\s/g, "␣") : "∅");
}

function startTokens() {
  const tools = byId("token-tools");
  if (!tools) return;
  const field = tools.elements, runs = data.draws;
  let run = runs[runs.length - 1], step = null, input = 0, position = null;
  fill(field.run, runs.map((each) => each.label));
  field.run.value = runs.length - 1;
  byId("draw-run-choice").hidden = runs.length < 2;

  function chooseRun() {
    run = runs[field.run.value];
    field.step.max = run.steps.length - 1;
    field.step.value = run.steps.length - 1;
    byId("token-words").replaceChildren(...words(run));
    chooseStep();
  }
  function chooseStep() {
    step = run.steps[field.step.value];
    const at = Number(field.step.value);
    field.step.setAttribute("aria-valuetext", `step ${step.step}`);
    byId("step-name").textContent = `step ${step.step}`;
    byId("step-before").disabled = at === 0;
    byId("step-after").disabled = at === run.steps.length - 1;
    byId("input-choice").replaceChildren(...step.inputs.map((_, n) => make("button", { type: "button", text: `Input ${n + 1}`, on: { click: () => chooseInput(n) } })));
    chooseInput(Math.min(input, step.inputs.length - 1));
  }
  function chooseInput(n) {
    input = n;
    [...byId("input-choice").children].forEach((button, place) => button.setAttribute("aria-pressed", String(place === n)));
    const shown = step.inputs[n];
    byId("token-prompt").textContent = plain(shown.prompt);
    const drawn = new Map();
    for (const draw of shown.draws) drawn.set(draw[POSITION], [...(drawn.get(draw[POSITION]) || []), draw]);
    const push = (draw) => (draw[COUNT] / shown.rewards.length) * (draw[ADVANTAGE] || 0);
    const scale = Math.max(0, ...shown.draws.map(push));
    byId("token-scale").textContent = scale > 1e-9 ? "" : "(here all samples have the same reward)";
    byId("token-target").replaceChildren(...shown.target.flatMap((token, place) => drawn.has(place) ? [chip(token, place, drawn.get(place), shown, push, scale), " "] : [make("span", { text: token })]));
    byId("token-rewards").replaceChildren(...rewards(shown));
    position = null;
    const best = [...shown.draws].sort((a, b) => push(b) - push(a))[0];
    if (best) choose(best[POSITION], drawn.get(best[POSITION]), shown);
    else byId("token-detail").replaceChildren(make("p", { class: "quiet", text: "No position of this input was masked." }));
  }
  function chip(token, place, draws, shown, push, scale) {
    const best = draws.reduce((a, b) => (push(b) > push(a) ? b : a));
    const pick = () => choose(place, draws, shown);
    return make("button", {
      type: "button", class: "token", "data-position": place, style: { background: `rgba(var(--up-back), ${(0.06 + 0.5 * (scale > 1e-9 ? push(best) / scale : 0)).toFixed(3)})` },
      "aria-label": plain(`masked: ${visible(token)}; pushed most: ${visible(best[TOKEN])}, advantage ${signed(best[ADVANTAGE])}`),
      on: { mouseenter: pick, focus: pick, click: pick },
    }, visible(token), make("small", { text: best[TOKEN] === token ? "✓" : visible(best[TOKEN]) }));
  }
  function choose(place, draws, shown) {
    if (place === position) return;
    position = place;
    byId("token-target").querySelectorAll(".token").forEach((each) => each.setAttribute("aria-pressed", String(Number(each.dataset.position) === place)));
    const total = shown.rewards.length, ordered = [...draws].sort((a, b) => b[ADVANTAGE] - a[ADVANTAGE]);
    const widest = Math.max(0, ...draws.map((draw) => Math.abs(draw[ADVANTAGE] || 0)));
    const known = draws.reduce((sum, draw) => sum + draw[COUNT], 0);
    const rest = known < total ? [make("p", { class: "note", text: `Other tokens were drawn ${total - known} times here.` })] : [];
    byId("token-detail").replaceChildren(
      make("p", {}, "Instead of ", make("strong", { text: `“${visible(shown.target[place])}”` }), ` (position ${place + 1}), the ${total} samples had:`),
      make("div", { class: "scroll" }, make("table", { class: "bars" },
        make("thead", {}, make("tr", {}, ...["token", "drawn", "probability", "advantage"].map((text) => make("th", { scope: "col", text })))),
        make("tbody", {}, ...ordered.map((draw) => make("tr", {},
          make("th", { scope: "row", text: visible(draw[TOKEN]) }),
          bar(`${draw[COUNT]} of ${total}`, draw[COUNT] / total, ""),
          make("td", { text: draw[PROBABILITY] === null ? "–" : `${show(100 * draw[PROBABILITY], 3)} %` }),
          bar(signed(draw[ADVANTAGE]), widest ? Math.abs(draw[ADVANTAGE]) / widest : 0, draw[ADVANTAGE] >= 0 ? "up" : "down")))))),
      ...rest,
      make("p", { class: "note", text: "Advantage: mean reward of the samples with this token, minus the baseline over all samples (Proposition 3). Training makes tokens with a positive one more likely." }));
  }
  function bar(text, share, kind) {
    return make("td", { class: "bar-cell" }, make("span", { text }), make("i", { class: kind, style: { width: `${Math.max(0.06, 4 * share)}rem` } }));
  }
  function rewards(shown) {
    const known = shown.rewards.filter((value) => value !== null);
    if (!known.length) return [make("p", { class: "quiet", text: "No sample of this input has a reward." })];
    const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
    const told = make("p", {}, `${known.length} samples: mean ${show(mean, 3)}, from ${show(Math.min(...known), 3)} to ${show(Math.max(...known), 3)}.`);
    const samples = shown.samples.map(([text, reward]) => make("div", { class: "sample" }, make("b", { text: show(reward, 3), class: reward >= mean ? "better" : "worse" }), make("span", { dir: "auto", text: text || "(empty)" })));
    return [told, histogram(known, mean), ...(samples.length ? [make("h4", { text: samples.length > 5 ? "Best and worst samples" : "Samples" })] : []), ...samples];
  }
  function histogram(values, mean) {
    const low = Math.min(...values), high = Math.max(...values), width = 360, bins = new Array(24).fill(0);
    const span = high - low || 1, place = (value) => 4 + (width - 8) * (high === low ? 0.5 : (value - low) / span);
    for (const value of values) bins[high === low ? 12 : Math.min(23, Math.floor((24 * (value - low)) / span))] += 1;
    const most = Math.max(...bins), picture = svg("svg", { class: "histogram", viewBox: `0 0 ${width} 110`, role: "img", "aria-label": `Rewards of ${values.length} samples from ${show(low)} to ${show(high)}, mean ${show(mean)}` });
    bins.forEach((count, n) => { if (count) picture.append(svg("rect", { x: 4 + (n * (width - 8)) / 24, y: 88 - (80 * count) / most, width: (width - 8) / 24 - 1.5, height: (80 * count) / most, rx: 1.5 })); });
    picture.append(svg("line", { x1: place(mean), x2: place(mean), y1: 4, y2: 90 }));
    picture.append(svg("text", { x: 4, y: 105 }, show(low, 3)), svg("text", { x: width - 4, y: 105, "text-anchor": "end" }, show(high, 3)));
    if (place(mean) > 60 && place(mean) < width - 60) picture.append(svg("text", { x: place(mean), y: 105, "text-anchor": "middle" }, `mean ${show(mean, 3)}`));
    return picture;
  }
  // A token's push: the sum over positions of its share of the samples times its advantage, which is its weight in the RL loss.
  function words(of) {
    const found = new Map();
    for (const each of of.steps) for (const shown of each.inputs) for (const draw of shown.draws) {
      const word = visible(draw[TOKEN]), entry = found.get(word) || { word, push: 0, drawn: 0 };
      entry.push += (draw[COUNT] / shown.rewards.length) * (draw[ADVANTAGE] || 0);
      entry.drawn += draw[COUNT];
      found.set(word, entry);
    }
    const ordered = [...found.values()].sort((a, b) => b.push - a.push);
    const top = ordered.filter((entry) => entry.push > 1e-9).slice(0, 8), bottom = ordered.filter((entry) => entry.push < -1e-9).slice(-8).reverse();
    const scale = Math.max(0, ...[...top, ...bottom].map((entry) => Math.abs(entry.push)));
    const list = (title, entries, kind) => make("div", { class: "scroll" }, make("table", { class: "bars word-list" }, make("thead", {}, make("tr", {}, ...[title, "push", "drawn"].map((text) => make("th", { scope: "col", text })))),
      make("tbody", {}, ...entries.map((entry) => make("tr", {}, make("th", { scope: "row", text: entry.word }), bar(signed(entry.push), Math.abs(entry.push) / scale, kind), make("td", { text: entry.drawn }))))));
    return scale ? [list("more likely", top, "up"), list("less likely", bottom, "down")] : [make("p", { class: "quiet", text: "No token had an advantage." })];
  }
  const move = (by) => { field.step.value = Number(field.step.value) + by; chooseStep(); };
  byId("step-before").addEventListener("click", () => move(-1));
  byId("step-after").addEventListener("click", () => move(1));
  field.step.addEventListener("input", chooseStep);
  field.run.addEventListener("change", chooseRun);
  tools.addEventListener("submit", (event) => event.preventDefault());
  chooseRun();
}
started.push(startTokens);
