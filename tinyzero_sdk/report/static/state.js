// What the page shows, kept in the address after `#`, so that a copied address opens the same view.

const DEFAULTS = {
  view: "curves", runs: "", x: "step", smooth: "0.6", from: "", to: "", metric: "",
  run: "", filters: "{}", offset: "0", row: "", shade: "", beside: "",
  a: "", b: "", keys: "", differences: "",
};
let state = { ...DEFAULTS };
const listeners = [];

function readAddress() {
  state = { ...DEFAULTS, ...Object.fromEntries(Object.entries(Object.fromEntries(new URLSearchParams(location.hash.slice(1)))).filter(([key]) => key in DEFAULTS)) };
}

function show(changes, { newEntry = false } = {}) {
  const changed = Object.keys(changes).filter((key) => String(changes[key] ?? "") !== state[key]);
  if (!changed.length) return;
  for (const key of changed) state[key] = String(changes[key] ?? "");
  const parameters = new URLSearchParams(Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key]));
  history[newEntry ? "pushState" : "replaceState"](null, "", `#${parameters}`);
  for (const listener of listeners) listener(new Set(changed));
}

function filters() {
  try {
    const found = JSON.parse(state.filters);
    const isPlain = found && typeof found === "object" && !Array.isArray(found);
    return isPlain ? found : {};
  } catch {
    return {}; // an address cut short
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
