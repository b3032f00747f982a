"use strict";
// What all parts of a page share. Texts of users reach the page by textContent only.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const started = [];

function plain(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"));
}

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = plain(String(value));
    else if (name === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
    else if (name === "style") Object.assign(made.style, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.map((child) => typeof child === "string" ? document.createTextNode(plain(child)) : child));
  return made;
}

function svg(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function show(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

function signed(value) {
  return (value > 0 ? "+" : value < 0 ? "−" : "±") + show(Math.abs(value), 3);
}

function fill(select, names) {
  select.replaceChildren(...names.map((name, n) => make("option", { value: n, text: name.length > 80 ? name.slice(0, 80) + "…" : name })));
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const label = byId("theme");
  if (label) label.querySelector("span").textContent = theme;
  document.dispatchEvent(new Event("theme"));
}

function remember(name, value) {
  try { localStorage.setItem(name, value); } catch { /* a browser may keep nothing for pages on disk */ }
}

function recall(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}

function begin() {
  let theme = THEMES.includes(recall("semioffline-theme")) ? recall("semioffline-theme") : "auto";
  setTheme(theme);
  byId("theme")?.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    remember("semioffline-theme", theme);
    setTheme(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
  for (const start of started) start();
  document.documentElement.dataset.ready = "true";
}
addEventListener("DOMContentLoaded", begin);
