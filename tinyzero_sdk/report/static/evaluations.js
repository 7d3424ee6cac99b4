// Evaluations of the chosen runs and scored files, and what changed between two of them.

const nameOf = (one) => [one.run.name, one.step ?? "", one.split ?? "", one.decoding ?? "", one.task ?? ""].join("|");
const every = () => chosenRuns().flatMap((run) => run.evaluations.map((one) => ({ ...one, run })));
const filtersOf = (one) => ({ ...(one.step === null ? {} : { step: [one.step, one.step] }), ...(one.split ? { split: [one.split] } : {}), ...(one.decoding ? { decoding: [one.decoding] } : {}), ...(one.task ? { task: [one.task] } : {}) });
const titleOf = (one, withTask) => [one.run.name, withTask && one.task, one.step === null ? "" : `step ${one.step}`, one.split ? setOf(one) : ""].filter(Boolean).join(", ");

function evaluationsView() {
  const table = h("div", {});
  const compared = h("div", {});
  let asked = 0;

  // By default the first and the last sampled evaluation of one run on its first task, or the last ones of two runs.
  function chosen(all) {
    const find = (name) => all.find((one) => nameOf(one) === name);
    const runs = [...new Set(all.map((one) => one.run))];
    const sampled = all.filter((one) => one.decoding !== "greedy");
    const alike = (run) => (sampled.length ? sampled : all).filter((one, place, some) => one.run === run && one.task === some[0].task);
    const [a, b] = runs.length > 1 ? [alike(runs[0]).at(-1), alike(runs[1]).at(-1)] : [alike(runs[0])[0], alike(runs[0]).at(-1)];
    return [find(state.a) ?? a, find(state.b) ?? b];
  }

  function drawTable(all, pair, severalTasks) {
    const samples = all.some((one) => one.pass_at);
    const pick = (one, side, place) => h("input", { type: "radio", name: side, "aria-label": `${side.toUpperCase()}: ${titleOf(one, severalTasks)}`, checked: pair[place] === one, onchange: () => show({ [side]: nameOf(one) }) });
    const line = (one) => h("tr", {}, all.length > 1 && ["a", "b"].map((side, place) => h("td", {}, pick(one, side, place))), h("th", { scope: "row" }, swatch(one.run), one.run.name), h("td", { className: "number" }, one.step ?? "–"), h("td", { className: "set" }, setOf(one)), severalTasks && h("td", {}, one.task ?? "–"),
      h("td", { className: "number" }, percent(one.accuracy)), h("td", { className: "number" }, interval(one)), h("td", {}, rangeBar(one)), samples && h("td", { className: "number", title: one.pass_at ? `95% interval ${interval({ low: one.passed_interval[0], high: one.passed_interval[1] })}` : "" }, one.pass_at ? `${percent(one.passed)} @${one.pass_at}` : "–"), h("td", { className: "number" }, count(one.problems)), h("td", { className: "number" }, count(one.completions)), h("td", {}, shares(one)), h("td", { className: "number" }, percent(one.cut_off / one.completions)));
    const head = [...(all.length > 1 ? ["A", "B"] : []), "Run", "Step", "Set", ...(severalTasks ? ["Task"] : []), "Accuracy", "95% interval", "", ...(samples ? ["pass@k"] : []), "Problems", "Completions", "Results", "Cut off"];
    const legend = inOrder([...new Set(all.flatMap((one) => Object.keys(one.reasons)))]);
    const absent = ["a", "b"].filter((side) => state[side] && !all.some((one) => nameOf(one) === state[side]));
    const remark = (side) => h("p", { className: "note" }, `The chosen runs have no evaluation “${state[side]}”; ${side.toUpperCase()} is ${titleOf(pair[side === "a" ? 0 : 1], severalTasks)}.`);
    replace(table, absent.map(remark), h("p", { className: "hint" }, legend.map(badge)), h("div", { className: "scroll tall" }, h("table", { className: "evaluations" }, h("thead", {}, h("tr", {}, head.map((label) => h("th", { className: ["Step", "Accuracy", "95% interval", "pass@k", "Problems", "Completions", "Cut off"].includes(label) ? "number" : "" }, label)))), h("tbody", {}, all.map(line)))));
  }

  async function drawComparison(a, b, severalTasks) {
    const ask = ++asked;
    if (!a || !b || a === b) return replace(compared, levels([a ?? b].filter(Boolean)));
    const comparison = await source.compare([a, b].map((one) => ({ run: one.run.name, filters: filtersOf(one) })));
    if (ask !== asked) return undefined;
    if (!comparison.problems) return replace(compared, h("h2", {}, "From A to B"), empty("A and B have no problem in common.", "Flips need completions of the same problems."), levels([a, b]));
    const sign = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${(100 * Math.abs(value)).toFixed(1)}`;
    const side = (name, one, row) => h("button", { type: "button", className: "link", title: `A completion of ${name}`, onclick: () => open(one, row) }, `${name} ${REASONS[reasonOf(row)]?.mark ?? "·"}`);
    const line = ({ problem, rates, rows }) => h("tr", {}, h("td", { className: "long", title: problem }, problem), h("td", { className: "number" }, percent(rates[0])), h("td", {}, "→"), h("td", { className: "number" }, percent(rates[1])), h("td", { className: "sides" }, side("A", a, rows[0]), side("B", b, rows[1])));
    const flips = (label, { total, first }) => h("section", {}, h("h3", {}, `${label}: ${plural(total, "problem")}`), total ? h("div", { className: "scroll tall" }, h("table", { className: "flips" }, h("tbody", {}, first.map(line)))) : h("p", { className: "hint" }, "None."), total > first.length && h("p", { className: "hint" }, `The first ${first.length}.`));
    const [accuracy, ...others] = comparison.metrics;
    const written = ({ name }) => ({ "mean score": (value) => value.toFixed(3), tokens: (value) => value.toFixed(1) })[name] ?? percent;
    const signed = (one, value) => (written(one) === percent ? sign(value) : `${value > 0 ? "+" : value < 0 ? "−" : ""}${written(one)(Math.abs(value))}`);
    const metric = (one) => h("tr", {}, h("th", { scope: "row" }, one.name in REASONS ? badge(one.name) : one.name), [one.baseline, one.other].map((value) => h("td", { className: "number" }, written(one)(value))), h("td", { className: "number" }, signed(one, one.difference), written(one) === percent && " pp"), h("td", { className: "number" }, one.interval ? one.interval.map((end) => signed(one, end)).join(" to ") : "–"), h("td", { className: "number" }, count(one.problems)));
    const stay = comparison.problems - comparison.better.total - comparison.worse.total;
    replace(compared, h("h2", {}, "From A to B"),
      h("p", {}, `A: ${titleOf(a, severalTasks)}. B: ${titleOf(b, severalTasks)}. On ${plural(comparison.problems, "problem")} that both have, accuracy changes by `, h("b", {}, `${sign(accuracy.difference)} points`), accuracy.interval && ` (95% interval ${accuracy.interval.map(sign).join(" to ")}, by problem)`, `; ${count(comparison.better.total)} improve, ${count(comparison.worse.total)} get worse, ${count(stay)} stay.`),
      comparison.remark && h("p", { className: "note" }, `${comparison.remark[0].toUpperCase()}${comparison.remark.slice(1)}.`),
      h("div", { className: "scroll" }, h("table", { className: "levels" }, h("thead", {}, h("tr", {}, ["", "A", "B", "Difference", "95% interval", "Problems"].map((label) => h("th", { className: label ? "number" : "" }, label)))), h("tbody", {}, others.map(metric)))),
      levels([a, b]), h("div", { className: "panels" }, flips("Better in B", comparison.better), flips("Worse in B", comparison.worse)));
    return undefined;
  }

  const open = (one, row) => show({ view: "completions", run: one.run.name, filters: JSON.stringify({ problem: row.problem }), offset: 0, row: row.id }, { newEntry: true });

  function update(changed) {
    if (["shade", "beside", "metric", "smooth"].some((name) => changed.has(name)) && changed.size === 1) return undefined;
    const all = every();
    if (!all.length) {
      replace(compared);
      return replace(table, empty("No evaluation has kept its completions.", "Held-out accuracy of each evaluation is under “Curves”."));
    }
    const pair = chosen(all);
    const severalTasks = new Set(all.map((one) => one.task)).size > 1;
    drawTable(all, pair, severalTasks);
    return drawComparison(...pair, severalTasks);
  }

  return { element: h("div", {}, table, compared), update };
}

const interval = (one) => `${(100 * one.low).toFixed(1)}–${percent(one.high)}`;
const rangeBar = (one) => h("span", { className: "range-bar", title: `${percent(one.accuracy)}, 95% interval ${interval(one)}` }, h("i", { style: { left: `${100 * one.low}%`, width: `${100 * (one.high - one.low)}%` } }), h("b", { style: { left: `${100 * one.accuracy}%` } }));
const shares = (one) => h("span", { className: "shares" }, Object.keys(REASONS).filter((reason) => one.reasons[reason]).map((reason) => h("i", { title: `${REASONS[reason].label}: ${percent(one.reasons[reason] / one.completions)}`, style: { width: `${(100 * one.reasons[reason]) / one.completions}%`, background: `var(--${reason})` } })));

function levels(some) {
  const names = [...new Set(some.flatMap((one) => Object.keys(one.levels)))].sort((a, b) => parseFloat(a) - parseFloat(b));
  if (!names.length) return [];
  const cells = (level) => (level ? [h("td", { className: "number" }, percent(level.accuracy)), h("td", { className: "number" }, interval(level)), h("td", {}, rangeBar(level)), h("td", { className: "number" }, count(level.problems))] : [1, 2, 3, 4].map(() => h("td", {})));
  const head = some.map((one, place) => [some.length > 1 ? `Accuracy of ${"AB"[place]}` : "Accuracy", "95% interval", "", "Problems"].map((label) => h("th", { className: label ? "number" : "" }, label)));
  return [h("h2", {}, "By difficulty"), h("div", { className: "scroll" }, h("table", { className: "levels" }, h("thead", {}, h("tr", {}, h("th", {}, "Difficulty"), head)), h("tbody", {}, names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), some.map((one) => cells(one.levels[name])))))))];
}
