// Evaluations of the chosen runs and scored files, and what changed between two of them.

const MOST_PAIRED = 50000; // completions of an evaluation that are compared
const MOST_FLIPS = 100;
const nameOf = (one) => [one.run.name, one.step ?? "", one.split ?? "", one.decoding ?? ""].join("|");
const every = () => chosenRuns().flatMap((run) => run.evaluations.map((one) => ({ ...one, run })));
const filtersOf = (one) => ({ ...(one.step === null ? {} : { step: [one.step, one.step] }), ...(one.split ? { split: [one.split] } : {}), ...(one.decoding ? { decoding: [one.decoding] } : {}) });
const titleOf = (one) => [one.run.name, one.step === null ? "" : `step ${one.step}`, one.split ? setOf(one) : ""].filter(Boolean).join(", ");

function evaluationsView() {
  const table = h("div", {});
  const compared = h("div", {});
  let asked = 0;

  // By default the first and the last evaluation of a kind of one run, or the last ones of two runs.
  function chosen(all) {
    const find = (name) => all.find((one) => nameOf(one) === name);
    const runs = [...new Set(all.map((one) => one.run))];
    const alike = (run) => all.filter((one) => one.run === run && one.decoding === all.at(-1).decoding);
    const [a, b] = runs.length > 1 ? [alike(runs[0]).at(-1), alike(runs[1]).at(-1)] : [alike(runs[0])[0], alike(runs[0]).at(-1)];
    return [find(state.a) ?? a, find(state.b) ?? b];
  }

  function drawTable(all, pair) {
    const pick = (one, side, place) => h("input", { type: "radio", name: side, "aria-label": `${side.toUpperCase()}: ${titleOf(one)}`, checked: pair[place] === one, onchange: () => show({ [side]: nameOf(one) }) });
    const line = (one) => h("tr", {}, all.length > 1 && ["a", "b"].map((side, place) => h("td", {}, pick(one, side, place))), h("th", { scope: "row" }, swatch(one.run), one.run.name), h("td", { className: "number" }, one.step ?? "–"), h("td", {}, setOf(one)),
      h("td", { className: "number" }, percent(one.accuracy)), h("td", { className: "number" }, interval(one)), h("td", {}, rangeBar(one)), h("td", { className: "number" }, count(one.problems)), h("td", { className: "number" }, count(one.completions)), h("td", {}, shares(one)), h("td", { className: "number" }, percent(one.cut_off / one.completions)));
    const head = [...(all.length > 1 ? ["A", "B"] : []), "Run", "Step", "Set", "Accuracy", "95 % interval", "", "Problems", "Completions", "Results", "Cut off"];
        const legend = inOrder([...new Set(all.flatMap((one) => Object.keys(one.reasons)))]);
    replace(table, h("p", { className: "hint" }, legend.map(badge)), h("div", { className: "scroll tall" }, h("table", { className: "evaluations" }, {}, h("thead", {}, h("tr", {}, head.map((label) => h("th", { className: ["Step", "Accuracy", "95 % interval", "Problems", "Completions", "Cut off"].includes(label) ? "number" : "" }, label)))), h("tbody", {}, all.map(line)))));
  }

  async function drawComparison(a, b) {
    const ask = ++asked;
    if (!a || !b || a === b) return replace(compared, levels([a ?? b].filter(Boolean)));
    const [first, second] = await Promise.all([a, b].map(async (one) => solved((await source.query(one.run.name, filtersOf(one), 0, MOST_PAIRED)).rows)));
    if (ask !== asked) return undefined;
    const shared = [...first.keys()].filter((problem) => second.has(problem));
    if (!shared.length) return replace(compared, h("h2", {}, "From A to B"), empty("A and B have no problem in common.", "Flips need completions of the same problems."), levels([a, b]));
    const moved = shared.map((problem) => ({ problem, from: first.get(problem), to: second.get(problem) })).map((one) => ({ ...one, by: one.to.rate - one.from.rate }));
    const mean = moved.reduce((sum, one) => sum + one.by, 0) / moved.length;
    const deviation = Math.sqrt(moved.reduce((sum, one) => sum + (one.by - mean) ** 2, 0) / Math.max(1, moved.length - 1) / moved.length);
    const reach = studentT(moved.length - 1) * deviation;
    const better = moved.filter((one) => one.by > 0).sort((x, y) => y.by - x.by);
    const worse = moved.filter((one) => one.by < 0).sort((x, y) => x.by - y.by);
    const sign = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${(100 * Math.abs(value)).toFixed(1)}`;
    const flips = (label, some) => h("section", {}, h("h3", {}, `${label}: ${plural(some.length, "problem")}`), some.length ? h("table", { className: "flips" }, h("tbody", {}, some.slice(0, MOST_FLIPS).map((one) => h("tr", {}, h("td", { className: "long" }, one.problem), h("td", { className: "number" }, percent(one.from.rate)), h("td", {}, "→"), h("td", { className: "number" }, percent(one.to.rate)), h("td", { className: "sides" }, [["A", a, one.from], ["B", b, one.to]].map(([side, of, { row }]) => h("button", { type: "button", className: "link", title: `A completion of ${side}`, onclick: () => open(of, row) }, `${side} ${REASONS[reasonOf(row)]?.mark ?? "·"}`))))))) : h("p", { className: "hint" }, "None."), some.length > MOST_FLIPS && h("p", { className: "hint" }, `The first ${MOST_FLIPS}.`));
    replace(compared, h("h2", {}, "From A to B"),
      h("p", {}, `A: ${titleOf(a)}. B: ${titleOf(b)}. On ${plural(shared.length, "problem")} that both have, accuracy changes by `, h("b", {}, `${sign(mean)} points`), moved.length > 1 && ` (95 % interval ${sign(mean - reach)} to ${sign(mean + reach)}, by problem)`, `; ${count(better.length)} improve, ${count(worse.length)} get worse, ${count(shared.length - better.length - worse.length)} stay.`),
      h("div", { className: "panels" }, flips("Better in B", better), flips("Worse in B", worse)), levels([a, b]));
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
    drawTable(all, pair);
    return drawComparison(...pair);
  }

  return { element: h("div", {}, table, compared), update };
}

// The 97.5 % quantile of Student's t, by Abramowitz and Stegun (1964), 26.7.5; to a hundredth from 5 degrees of freedom.
function studentT(freedom) {
  const z = 1.959963984540054;
  return z + (z ** 3 + z) / 4 / freedom + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96 / freedom ** 2 + (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384 / freedom ** 3;
}

// Rate of right completions of each problem, and one of its rows.
function solved(rows) {
  const problems = new Map();
  for (const row of rows) {
    const one = problems.get(row.problem) ?? { right: 0, size: 0, row };
    one.right += row.correct === true;
    one.size += 1;
    one.rate = one.right / one.size;
    problems.set(row.problem, one);
  }
  return problems;
}

const interval = (one) => `${(100 * one.low).toFixed(1)}–${percent(one.high)}`;
const rangeBar = (one) => h("span", { className: "range-bar", title: `${percent(one.accuracy)}, 95 % interval ${interval(one)}` }, h("i", { style: { left: `${100 * one.low}%`, width: `${100 * (one.high - one.low)}%` } }), h("b", { style: { left: `${100 * one.accuracy}%` } }));
const shares = (one) => h("span", { className: "shares" }, Object.keys(REASONS).filter((reason) => one.reasons[reason]).map((reason) => h("i", { title: `${REASONS[reason].label}: ${percent(one.reasons[reason] / one.completions)}`, style: { width: `${(100 * one.reasons[reason]) / one.completions}%`, background: `var(--${reason})` } })));

function levels(some) {
  const names = [...new Set(some.flatMap((one) => Object.keys(one.levels)))].sort((a, b) => a - b);
  if (!names.length) return [];
  const cells = (level) => (level ? [h("td", { className: "number" }, percent(level.accuracy)), h("td", { className: "number" }, interval(level)), h("td", {}, rangeBar(level)), h("td", { className: "number" }, count(level.problems))] : [1, 2, 3, 4].map(() => h("td", {})));
  const head = some.map((one, place) => [some.length > 1 ? `Accuracy of ${"AB"[place]}` : "Accuracy", "95 % interval", "", "Problems"].map((label) => h("th", { className: label ? "number" : "" }, label)));
  return [h("h2", {}, "By difficulty"), h("div", { className: "scroll" }, h("table", { className: "levels" }, h("thead", {}, h("tr", {}, h("th", {}, "Difficulty"), head)), h("tbody", {}, names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), some.map((one) => cells(one.levels[name])))))))];
}
