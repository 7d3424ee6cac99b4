// What the page shows, kept in the address after `#`, so that a copied address opens the same view.

const isAny = () => true;
const isFlag = (text) => text === "1";
const isNumber = (text) => text.trim() !== "" && Number.isFinite(Number(text));
const FIELDS = { // the default of each, and what else it may be
  view: ["curves", (text) => Object.hasOwn(VIEWS, text)],
  runs: ["", (text) => { try { return decodeURIComponent(text); } catch { return false; } }],
  x: ["step", (text) => Object.hasOwn(AXES, text)],
  smooth: ["0.6", (text) => isNumber(text) && text >= 0 && text <= 0.98],
  from: ["", isNumber], to: ["", isNumber], metric: ["", isAny],
  run: ["", isAny], filters: ["{}", isAny], offset: ["0", (text) => /^\d{1,9}$/.test(text)], row: ["", (text) => /:\d{1,9}$/.test(text)],
  shade: ["", (text) => Object.hasOwn(SHADES, text)], beside: ["", isFlag],
  a: ["", isAny], b: ["", isAny], keys: ["", isAny], differences: ["", isFlag],
};
const DEFAULTS = Object.fromEntries(Object.entries(FIELDS).map(([key, [value]]) => [key, value]));
let state = { ...DEFAULTS };
const listeners = [];

// An address may be cut short or written by hand: what is not valid is as if it were not there.
function readAddress() {
  const given = [...new URLSearchParams(location.hash.slice(1))];
  state = { ...DEFAULTS, ...Object.fromEntries(given.filter(([key, text]) => Object.hasOwn(FIELDS, key) && FIELDS[key][1](text))) };
}

function show(changes, { newEntry = false } = {}) {
  const changed = Object.keys(changes).filter((key) => String(changes[key] ?? "") !== state[key]);
  if (!changed.length) return;
  for (const key of changed) state[key] = String(changes[key] ?? "");
  const parameters = new URLSearchParams(Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key]));
  history[newEntry ? "pushState" : "replaceState"](null, "", `#${parameters}`);
  for (const listener of listeners) listener(new Set(changed));
}

const isText = (value) => typeof value === "string";
const isBoolean = (value) => typeof value === "boolean";
const areTexts = (value) => Array.isArray(value) && value.every(isText);
const isRange = (value) => Array.isArray(value) && value.length === 2 && value.every((end) => end === null || Number.isFinite(end));
const FILTERS = {
  reason: areTexts, task: areTexts, split: areTexts, decoding: areTexts, step: isRange, difficulty: isRange, score: isRange,
  problem: isText, text: isText, cut_off: isBoolean, sort: isText, descending: isBoolean,
};

function filters() {
  try {
    const entries = Object.entries(JSON.parse(state.filters) ?? {});
    return Object.fromEntries(entries.filter(([name, value]) => Object.hasOwn(FILTERS, name) && FILTERS[name](value)));
  } catch {
    return {};
  }
}

// Dark, light or as the system: of the reader, not of the view.
const THEMES = ["auto", "light", "dark"];
const stored = () => { try { return localStorage.getItem("tinyzero-theme") ?? "auto"; } catch { return "auto"; } };
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(theme) {
  document.documentElement.dataset.theme = theme === "auto" ? (systemIsDark.matches ? "dark" : "light") : theme;
  try { localStorage.setItem("tinyzero-theme", theme); } catch { /* a file opened without storage */ }
}
