// The frame: which runs and which view, theme, keys, and new data while a run goes on.

const page = JSON.parse(document.getElementById("data").textContent);
const source = page.live ? new ServerSource(page) : new FileSource(page);
const MOST_RUNS = 7; // as many as there are colours
let loaded = [];

// A run keeps its colour while it is chosen.
const colored = Array(MOST_RUNS).fill(null);
const runColor = (run) => (colored.includes(run.name) ? `run-${colored.indexOf(run.name)}` : "line");
function assignColors(names) {
  colored.forEach((name, place) => { if (!names.includes(name)) colored[place] = null; });
  for (const name of names) if (!colored.includes(name)) colored[colored.indexOf(null)] = name;
}

const swatch = (run) => h("i", { className: "swatch", style: { background: `var(--${runColor(run)})` } });
const empty = (what, why) => h("div", { className: "empty" }, h("p", {}, what), why && h("p", {}, why));

const wantedNames = () => state.runs.split(",").map(decodeURIComponent);
function chosenNames() {
  const listed = source.listed().map((run) => run.name);
  const wanted = new Set(wantedNames().filter((name) => listed.includes(name)));
  return wanted.size ? [...wanted].slice(0, MOST_RUNS) : listed.slice(0, page.live ? 1 : MOST_RUNS);
}
const chosenRuns = () => loaded.filter((run) => chosenNames().includes(run.name));

const VIEWS = {
  curves: { label: "Curves", make: curvesView },
  completions: { label: "Completions", make: completionsView },
  evaluations: { label: "Evaluations", make: evaluationsView },
  configuration: { label: "Configuration", make: configurationView },
};
const views = {};
let current;

const runList = h("div", { className: "runs", role: "group", "aria-label": "Runs" });
const tabs = h("nav", { "aria-label": "Views" }, Object.entries(VIEWS).map(([name, { label }]) => h("button", { type: "button", value: name, onclick: () => show({ view: name }, { newEntry: true }) }, label)));
const theme = h("button", { type: "button", className: "quiet", title: "Dark, light, or as the system (t)", onclick: () => nextTheme() });
const status = h("span", { className: "status", role: "status" });
const leftOut = h("div", { className: "left-out", role: "note" });
const main = h("main", {});

function drawRuns() {
  const names = chosenNames();
  const toggle = (name) => {
    const next = names.includes(name) ? names.filter((one) => one !== name) : [...names, name].slice(-MOST_RUNS);
    show({ runs: next.map(encodeURIComponent).join(",") }, { newEntry: true });
  };
  replace(runList, source.listed().map((run) => h("button", { type: "button", "aria-pressed": names.includes(run.name), onclick: () => toggle(run.name) }, swatch(run), run.name)));
  document.title = names.length === 1 ? `${names[0]} – TinyZero` : `${plural(names.length, "run")} – TinyZero`;
}

async function load(changed) {
  const names = chosenNames();
  const missing = changed.has("data") ? names : names.filter((name) => !loaded.some((run) => run.name === name));
  if (missing.length) {
    const runs = await source.load(missing);
    // In the order given; of `view`, which lists the newest first, in the order of time, so that A is the older run.
    const order = (run) => (page.live ? -1 : 1) * source.listed().findIndex((one) => one.name === run.name);
    loaded = [...loaded.filter((run) => !missing.includes(run.name)), ...runs].sort((a, b) => order(a) - order(b));
  }
}

async function update(changed) {
  if (["runs", "run", "data"].some((name) => changed.has(name))) {
    try {
      await load(changed);
      status.textContent = page.live ? "live" : "";
    } catch (error) {
      status.textContent = `cannot load: ${error.message}`;
    }
    assignColors(chosenNames());
    drawRuns();
    const absent = [...wantedNames(), state.run].filter((name) => name && !source.listed().some((run) => run.name === name));
    replace(leftOut, absent.map((name) => h("p", {}, `There is no run “${name}” here; this shows ${chosenNames().length === 1 ? chosenNames()[0] : plural(chosenNames().length, "run")}.`)), chosenRuns().map((run) => run.leftOut.length && h("p", {}, `Left out of ${run.name}: ${run.leftOut.join("; ")}.`)));
  }
  for (const tab of tabs.children) tab.setAttribute("aria-current", tab.value === state.view ? "page" : "false");
  const name = state.view;
  if (current !== name) {
    views[current]?.leave?.();
    current = name;
    views[name] ??= VIEWS[name].make();
    replace(main, views[name].element);
    changed = new Set([...changed, "view"]);
  }
  try {
    await views[name].update(changed);
  } catch (error) {
    console.error(error);
    status.textContent = `cannot load: ${error.message}`;
  }
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(stored()) + 1) % THEMES.length];
  setTheme(next);
  drawTheme();
}

function drawTheme() {
  theme.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[stored()];
  update(new Set(["theme"]));
}

const HELP = [["1 – 4", "view"], ["/", "search"], ["j, k", "next, previous completion"], ["[, ]", "same problem: earlier, later"], ["s", "completions of the problem side by side"], ["t", "theme"], ["Esc", "close"], ["?", "these keys"]];
const help = h("dialog", {}, h("h2", {}, "Keys"), h("dl", {}, HELP.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])), h("form", { method: "dialog" }, h("button", {}, "Close")));

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return void (document.activeElement.blur(), views[current]?.key?.("Escape"));
  if (event.target.matches("select, input:not([type=checkbox], [type=radio], [type=range])")) return;
  const number = Number(event.key);
  if (number >= 1 && number <= Object.keys(VIEWS).length) show({ view: Object.keys(VIEWS)[number - 1] }, { newEntry: true });
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") help.showModal();
  else if (event.key === "/") main.querySelector("input[type=search]")?.focus();
  else if (!views[current]?.key?.(event.key)) return;
  event.preventDefault();
});
addEventListener("hashchange", () => { readAddress(); update(new Set(Object.keys(DEFAULTS))); });
addEventListener("popstate", () => { readAddress(); update(new Set(Object.keys(DEFAULTS))); });
systemIsDark.addEventListener("change", () => { setTheme(stored()); drawTheme(); });
addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; update(new Set(["theme"])); });
addEventListener("afterprint", () => { setTheme(stored()); update(new Set(["theme"])); });

async function start() {
  setTheme(stored());
  theme.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[stored()];
  document.getElementById("page").append(
    h("header", {}, h("div", { className: "top" }, h("strong", {}, "TinyZero"), tabs, h("span", { className: "space" }), status, h("span", { className: "written" }, page.written), theme,
      h("button", { type: "button", className: "quiet", title: "Keys (?)", "aria-label": "Keys", onclick: () => help.showModal() }, "?")), runList, leftOut), main, help);
  readAddress();
  listeners.push(update);
  if (page.live) {
    await source.refresh();
    setInterval(async () => {
      try {
        const before = JSON.stringify(source.list);
        await source.refresh();
        if (JSON.stringify(source.list) !== before) update(new Set(["data"]));
        status.textContent = "live";
      } catch {
        status.textContent = "the server has stopped";
      }
    }, 1000 * page.live);
  }
  if (page.refresh) setTimeout(() => location.reload(), 1000 * page.refresh);
  await update(new Set(["data", "runs"]));
  requestAnimationFrame(() => setTimeout(() => performance.mark("shown"))); // now it is on the screen
}
start();
