"use strict";
// Rating of outputs, by keys or buttons. Answers are kept in the browser and exported as a file.
const CHOICES = { overall: [["−1 bad", -1], ["0 acceptable", 0], ["1 good", 1]], criteria: [["1 bad", 1], ["2 acceptable", 2], ["3 good", 3]], pairwise: [["first", -1], ["no preference", 0], ["second", 1]] };

function startRating() {
  const { id, protocol, criteria, items } = data, store = `semioffline-rating-${id}`;
  const answers = JSON.parse(recall(store) || "{}"), rater = byId("rater");
  const pairwise = protocol === "pairwise", choices = CHOICES[protocol];
  const questions = items.map(([, outputs]) => pairwise ? [[null, criteria[0]]] : outputs.flatMap((_, n) => criteria.map((name) => [n, name])));
  const name = (item, n) => `${item}:${questions[item][n].join(":")}`;
  const done = (item) => questions[item].every((_, n) => name(item, n) in answers);
  let item = Math.max(0, items.findIndex((_, n) => !done(n))), now = 0;
  rater.value = recall("semioffline-rater") || "";
  rater.addEventListener("input", () => remember("semioffline-rater", rater.value));

  function question(n) {
    const [output, criterion] = questions[item][n], given = answers[name(item, n)];
    const buttons = choices.map(([label, score], key) => make("button", { type: "button", "aria-pressed": String(given === score), title: `key ${key + 1}`, text: label, on: { click: () => { now = n; answer(score); } } }));
    return make("fieldset", { class: n === now ? "now" : "", "data-question": n }, make("legend", { text: pairwise ? "Which is better?" : output === null || criteria.length === 1 ? "Score" : criterion }), ...buttons);
  }
  function paint() {
    const [prompt, outputs] = items[item];
    const cards = outputs.map((text, n) => make("section", { class: "card", "aria-label": `Output ${n + 1}` }, make("h3", { text: `Output ${n + 1}` }), make("p", { class: "text", dir: "auto", text: text || "(empty)" }),
      ...questions[item].map(([output], at) => output === n ? question(at) : "")));
    byId("item").replaceChildren(make("section", { class: "card", "aria-label": "Input" }, make("h3", { text: "Input" }), make("p", { class: "text", dir: "auto", text: prompt })), make("div", { class: "outputs" }, ...cards), ...(pairwise ? [make("div", { class: "card" }, question(0))] : []));
    const rated = items.filter((_, n) => done(n)).length;
    Object.assign(byId("progress"), { max: items.length, value: rated });
    byId("place").textContent = `${item + 1} of ${items.length}; ${rated} rated`;
    byId("back").disabled = item === 0;
    byId("next").disabled = item === items.length - 1;
  }
  function answer(score) {
    answers[name(item, now)] = score;
    remember(store, JSON.stringify(answers));
    const open = questions[item].findIndex((_, n) => !(name(item, n) in answers));
    if (open >= 0) now = open;
    else if (item < items.length - 1) go(1);
    paint();
  }
  function go(by) {
    item = Math.min(items.length - 1, Math.max(0, item + by));
    now = Math.max(0, questions[item].findIndex((_, n) => !(name(item, n) in answers)));
    paint();
  }
  function save() {
    const ratings = Object.entries(answers).map(([place, score]) => { const [number, output, ...rest] = place.split(":"); return { item: Number(number), output: output === "" ? null : Number(output), criterion: rest.join(":"), score }; });
    const address = URL.createObjectURL(new Blob([JSON.stringify({ id, protocol, rater: rater.value.trim(), ratings }, null, 1)], { type: "application/json" }));
    make("a", { href: address, download: `ratings-${rater.value.trim().replace(/[^\w-]+/g, "_") || "anonymous"}.json` }).click();
  }
  addEventListener("keydown", (event) => {
    if (event.target === rater || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = Number(event.key);
    if (key >= 1 && key <= choices.length) answer(choices[key - 1][1]);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") go(event.key === "ArrowLeft" ? -1 : 1);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") { now = Math.min(questions[item].length - 1, Math.max(0, now + (event.key === "ArrowUp" ? -1 : 1))); paint(); }
    else return;
    event.preventDefault();
  });
  byId("back").addEventListener("click", () => go(-1));
  byId("next").addEventListener("click", () => go(1));
  byId("export").addEventListener("click", save);
  paint();
}
started.push(startRating);
