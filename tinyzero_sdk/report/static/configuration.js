// The configurations of the chosen runs, and where they differ.

function configurationView() {
  const table = h("div", { className: "scroll" });
  const find = h("input", { type: "search", placeholder: "Find a setting", "aria-label": "Find a setting", oninput: () => show({ keys: find.value }) });
  const only = h("input", { type: "checkbox", onchange: () => show({ differences: only.checked ? "1" : "" }) });
  const choice = h("label", {}, only, " Differences only");

  function update() {
    const runs = chosenRuns().filter((run) => Object.keys(run.config).length);
    find.value = state.keys;
    only.checked = state.differences === "1";
    choice.hidden = runs.length < 2;
    if (!runs.length) return replace(table, empty("No configuration.", "A run writes its settings to config.toml; scored files have none."));
    const differs = (key) => new Set(runs.map((run) => run.config[key])).size > 1;
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
    const every = Object.values(Object.groupBy(names, (key) => key.split(".")[0])).flat(); // as the first run has them
    const keys = every.filter((key) => key.includes(state.keys) && (!only.checked || runs.length < 2 || differs(key)));
    const rows = keys.map((key) => h("tr", { className: runs.length > 1 && differs(key) ? "differs" : "" }, h("th", { scope: "row" }, key), runs.map((run) => h("td", {}, run.config[key] ?? "–"))));
    const head = h("tr", {}, h("th", {}, "Setting"), runs.map((run) => h("th", {}, swatch(run), run.name)));
    replace(table, rows.length ? h("table", { className: "settings" }, h("thead", {}, head), h("tbody", {}, rows)) : empty(only.checked ? "The runs have the same settings." : "No such setting.", ""));
  }

  return { element: h("div", {}, h("div", { className: "controls" }, find, choice), table), update };
}
