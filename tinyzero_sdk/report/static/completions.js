// The completions of one run: filters, a table of pages, and one completion with all others of its problem.

const PAGE_ROWS = 50;
const MOST_OF_PROBLEM = 2000; // completions of a problem that are followed
const MOST_BESIDE = 24;
const COLUMNS = [
  ["step", "Step", "number"], ["split", "Set", "less in-detail"], ["task", "Task", "less in-detail"], ["problem", "Problem", "long"], ["difficulty", "Difficulty", "number less"],
  ["answer", "Answer", "long"], ["reason", "Result", ""], ["score", "Score", "number less"], ["num_tokens", "Tokens", "number less"],
];
const RANGE_FILTERS = [["step", "Step"], ["difficulty", "Difficulty"], ["score", "Score"]];

const runsWithCompletions = () => chosenRuns().filter((run) => run.completions > 0);
const shownRun = () => runsWithCompletions().find((run) => run.name === state.run) ?? runsWithCompletions()[0];
const setOf = (row) => [{ heldout: "held-out", train: "training" }[row.split] ?? row.split, row.decoding === "greedy" ? "greedy" : ""].filter(Boolean).join(", ") || "scored";
const inOrder = (values) => values.toSorted((one, two) => Object.keys(REASONS).indexOf(one) - Object.keys(REASONS).indexOf(two));
const sameSet = (one, two) => one.step === two.step && one.split === two.split && one.decoding === two.decoding;

function completionsView() {
  const form = h("div", { className: "controls filters" });
  const list = h("div", { className: "list" });
  const detail = h("aside", { className: "detail", "aria-label": "Completion" });
  const body = h("div", { className: "split" }, list, detail);
  let rows = [], total = 0, asked = 0, siblings = [], formOf;

  const change = (changes, options) => show({ filters: JSON.stringify({ ...filters(), ...changes }), offset: 0, row: "" }, options);

  function drawForm(run) {
    formOf = run;
    const facets = run.facets;
    const now = filters();
    const text = h("input", { type: "search", className: "search", placeholder: "Search prompts, completions, answers", "aria-label": "Search", value: now.text ?? "", oninput: debounced(() => change({ text: text.value || undefined }), 150) });
    const several = (name, labels) => facets[name]?.length > 1 && h("span", { className: "chips", role: "group", "aria-label": name }, inOrder(facets[name]).map((value) => {
      const on = now[name]?.includes(value);
      const toggle = () => change({ [name]: on ? now[name].filter((one) => one !== value) : [...(now[name] ?? []), value] });
      return h("button", { type: "button", "aria-pressed": Boolean(on), value, onclick: toggle }, labels(value));
    }));
    const range = ([name, label]) => {
      const [low, high] = facets[name];
      if (low === null || low === high) return null;
      const [from, to] = [0, 1].map((end) => h("input", { type: "number", step: "any", "aria-label": `${label} ${end ? "to" : "from"}`, placeholder: short(facets[name][end]), value: now[name]?.[end] ?? "", onchange: () => {
        const ends = [from, to].map((input) => (input.value === "" ? null : Number(input.value)));
        change({ [name]: ends.every((one) => one === null) ? undefined : ends });
      } }));
      return h("span", { className: "range" }, label, " ", from, "–", to);
    };
    const cut = h("input", { type: "checkbox", checked: now.cut_off === true, onchange: () => change({ cut_off: cut.checked ? true : undefined }) });
    const runs = runsWithCompletions();
    replace(form,
      runs.length > 1 && h("select", { "aria-label": "Run", onchange: (event) => show({ run: event.target.value, filters: "{}", offset: 0, row: "" }) }, runs.map((one) => h("option", { value: one.name, selected: one.name === run.name }, one.name))),
      text, several("reason", badge), several("split", (value) => setOf({ split: value })), several("decoding", String), several("task", String), RANGE_FILTERS.map(range),
      h("label", {}, cut, " Cut off"),
      Object.keys(now).length > 0 && h("button", { type: "button", className: "quiet", onclick: () => show({ filters: "{}", offset: 0, row: "" }) }, "Clear filters"),
      now.problem !== undefined && h("span", { className: "chips" }, h("button", { type: "button", "aria-pressed": true, title: "All problems", onclick: () => change({ problem: undefined }) }, `Problem ${now.problem.slice(0, 40)} ×`)));
  }

  async function drawList(run) {
    const ask = ++asked;
    const offset = Number(state.offset);
    const waiting = setTimeout(() => replace(list, empty("Searching …", "")), 500);
    const matches = await source.query(run.name, filters(), offset, PAGE_ROWS).finally(() => clearTimeout(waiting));
    if (ask !== asked) return undefined; // a later question has been asked
    ({ rows, total } = matches);
    if (total && offset >= total) return show({ offset: total - 1 - ((total - 1) % PAGE_ROWS) });
    const columns = COLUMNS.filter(([name]) => (name === "task" ? run.facets.task.length > 1 : name === "split" || rows.some((row) => row[name] !== null)));
    const sorted = filters();
    const head = columns.map(([name, label, kind]) => {
      const mark = sorted.sort === name ? (sorted.descending ? " ↓" : " ↑") : "";
      return h("th", { className: kind.replace("long", ""), "aria-sort": mark && (sorted.descending ? "descending" : "ascending") }, h("button", { type: "button", className: "link", onclick: () => change({ sort: name, descending: sorted.sort === name ? !sorted.descending : false }) }, label + mark));
    });
    const lines = rows.map((row) => h("tr", { tabIndex: 0, id: `row-${row.id}`, "aria-selected": row.id === state.row, onclick: () => show({ row: row.id }, { newEntry: true }), onkeydown: (event) => event.key === "Enter" && show({ row: row.id }, { newEntry: true }) },
      columns.map(([name, , kind]) => h("td", { className: kind }, name === "reason" ? badge(reasonOf(row)) : name === "split" ? setOf(row) : kind.startsWith("number") ? short(row[name]) : row[name] ?? "–"))));
    const kept = run.kept !== undefined && run.kept < run.completions ? `, of ${count(run.completions)}; this file holds some problems only, “tinyzero view” shows all` : "";
    const pages = h("div", { className: "pages" },
      h("span", {}, total ? `${count(offset + 1)}–${count(Math.min(offset + PAGE_ROWS, total))} of ${plural(total, "completion")}${kept}` : ""),
      total > PAGE_ROWS && [["‹ Previous", offset - PAGE_ROWS], ["Next ›", offset + PAGE_ROWS]].map(([label, to]) => h("button", { type: "button", disabled: to < 0 || to >= total, onclick: () => show({ offset: to }) }, label)));
    replace(list, pages, total ? h("div", { className: "scroll" }, h("table", { className: "rows" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, lines))) : empty("No completion passes these filters.", ""));
    performance.mark("filtered");
    return undefined;
  }

  async function drawDetail(run) {
    body.classList.toggle("open", state.row !== "");
    body.classList.toggle("wide", state.beside !== "");
    if (!state.row) return replace(detail);
    const [row] = await source.texts(run.name, [state.row]);
    if (!row) return replace(detail, close(), empty("This completion is not there any more.", "A run in progress may have merged its files."));
    const matches = await source.query(run.name, { problem: row.problem, sort: "step" }, 0, MOST_OF_PROBLEM);
    if (row.id !== state.row) return undefined;
    siblings = matches.rows;
    const group = siblings.filter((one) => sameSet(one, row));
    const beside = h("button", { type: "button", "aria-pressed": state.beside !== "", onclick: () => show({ beside: state.beside ? "" : "1" }) }, "Side by side");
    const facts = [["Score", short(row.score)], ...Object.entries(row.parts ?? {}).map(([name, value]) => [name, short(value)]), ["Advantage", row.advantage === null ? null : short(row.advantage)], ["Tokens", row.num_tokens === null ? null : count(row.num_tokens)], ["Difficulty", row.difficulty === null ? null : short(row.difficulty)], ["Answer", row.answer]];
    replace(detail,
      h("div", { className: "heading" }, badge(reasonOf(row)), row.finished === false && h("span", { className: "badge cut" }, "✂ cut off"), h("span", { className: "hint" }, [row.step === null ? "" : `step ${row.step}`, setOf(row), row.task].filter(Boolean).join(" · ")), h("span", { className: "space" }), close()),
      h("dl", { className: "facts" }, facts.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      h("h3", {}, "Prompt"), promptOf(row.prompt),
      h("h3", {}, "Completion", shading(row)), !shading(row) && run.withTokens < run.kept && h("p", { className: "hint" }, `Tokens are shaded in the first ${count(run.withTokens)} completions of this file; “tinyzero view” shades all.`), completionOf(row),
      h("h3", {}, "Ground truth"), h("pre", { className: "text" }, row.ground_truth ?? "–"),
      h("h3", {}, `Same problem: ${plural(matches.total, "completion")}`, h("span", { className: "tools" }, siblings.length > 1 && beside, row.problem !== null && h("button", { type: "button", onclick: () => change({ problem: row.problem, sort: undefined }) }, "List"))),
      followed(row), state.beside && (await besideOf(run, row, group.length > 1 ? group : siblings)));
    document.getElementById(`row-${row.id}`)?.scrollIntoView({ block: "nearest" });
    return undefined;
  }

  const close = () => h("button", { type: "button", className: "quiet", "aria-label": "Close", onclick: () => show({ row: "" }) }, "✕");

  // The problem over training: a line for each step and set, a mark for each completion.
  function followed(row) {
    const sets = [];
    for (const one of siblings) {
      const last = sets.find((set) => sameSet(set[0], one));
      if (last) last.push(one);
      else sets.push([one]);
    }
    const line = (set) => h("tr", {}, h("th", { scope: "row", className: "number" }, set[0].step ?? "–"), h("td", {}, setOf(set[0])), h("td", { className: "number" }, percent(set.filter((one) => one.correct).length / set.length)),
      h("td", { className: "marks" }, set.map((one) => h("button", { type: "button", className: `mark ${reasonOf(one)}`, title: `${REASONS[reasonOf(one)]?.label ?? one.reason}, score ${short(one.score)}${one.answer ? `, answer ${one.answer}` : ""}`, "aria-current": one.id === row.id, onclick: () => show({ row: one.id }) }, REASONS[reasonOf(one)]?.mark ?? "·"))));
    return h("div", { className: "scroll follow" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { className: "number" }, "Step"), h("th", {}, "Set"), h("th", { className: "number" }, "Right"), h("th", {}, "Completions"))), h("tbody", {}, sets.map(line))));
  }

  async function besideOf(run, row, group) {
    const shown = group.slice(0, MOST_BESIDE);
    const texts = await source.texts(run.name, shown.map((one) => one.id));
    const note = shown.length < group.length ? h("p", { className: "hint" }, `The first ${MOST_BESIDE} of ${group.length}.`) : null;
    return [note, h("div", { className: "beside" }, texts.filter(Boolean).map((one) => h("article", { "aria-current": one.id === row.id }, h("div", { className: "heading" }, badge(reasonOf(one)), h("span", { className: "hint" }, `step ${one.step ?? "–"} · ${setOf(one)} · score ${short(one.score)}`)), completionOf(one))))];
  }

  function move(by) {
    const place = rows.findIndex((row) => row.id === state.row) + by;
    if (rows[place]) show({ row: rows[place].id });
    else if (place >= rows.length && Number(state.offset) + PAGE_ROWS < total) show({ offset: Number(state.offset) + PAGE_ROWS, row: "" });
  }

  function key(name) {
    const place = siblings.findIndex((one) => one.id === state.row);
    const next = siblings[place + (name === "]" ? 1 : -1)];
    if (name === "j" || name === "k") move(name === "j" ? 1 : -1);
    else if ((name === "[" || name === "]") && place >= 0 && next) show({ row: next.id });
    else if (name === "s" && state.row) show({ beside: state.beside ? "" : "1" });
    else if (name === "Escape") show({ row: "" });
    else return false;
    return true;
  }

  async function update(changed) {
    const run = shownRun();
    if (!run) {
      formOf = undefined;
      replace(form);
      replace(detail);
      return replace(list, empty("This run kept no completions.", "A run keeps some of each step and evaluation unless log.rollouts_every=0."));
    }
    const has = (...names) => names.some((name) => changed.has(name));
    const typing = form.contains(document.activeElement) && document.activeElement.type === "search" && formOf === run;
    if (has("view", "filters", "run", "runs", "data") && !typing) drawForm(run);
    if (has("view", "filters", "offset", "run", "runs", "data")) await drawList(run);
    else for (const line of list.querySelectorAll("tbody tr")) line.setAttribute("aria-selected", line.id === `row-${state.row}`);
    if (has("view", "row", "shade", "beside", "run", "runs", "data", "filters")) await drawDetail(run);
    if (has("view", "run", "runs", "data")) (globalThis.requestIdleCallback ?? setTimeout)(() => source.prepare(run.name));
    return undefined;
  }

  return { element: h("div", {}, form, body), update, key };
}

// A prompt is text, or chat messages as JSON.
function promptOf(prompt) {
  let messages = null;
  if (prompt?.startsWith("[{")) {
    try {
      messages = JSON.parse(prompt);
    } catch { /* text that begins so */ }
  }
  if (!Array.isArray(messages)) return h("pre", { className: "text" }, prompt ?? "–");
  return messages.map((message) => h("pre", { className: "text" }, h("b", { className: "role" }, String(message.role)), "\n", String(message.content)));
}

const SHADES = { logprob: ["logprobs", "Log-probability", (value) => Math.min(1, -value / 5), "wrong"], entropy: ["entropies", "Entropy", (value) => Math.min(1, value / 3), "ok"] };

function shading(row) {
  const known = Object.entries(SHADES).filter(([, [column]]) => row[column]?.length && row.token_ends?.length);
  if (!known.length) return null;
  return h("span", { className: "tools choice", role: "group", "aria-label": "Shading of tokens" }, [["", ["", "Plain"]], ...known].map(([name, [, label]]) => h("button", { type: "button", "aria-pressed": state.shade === name, onclick: () => show({ shade: name }) }, label)));
}

// The completion with its thought set back, its answer marked, and its tokens shaded.
function completionOf(row) {
  const text = row.completion ?? "";
  const cuts = new Set([0, text.length]);
  const thought = text.indexOf("</think>") >= 0 ? text.indexOf("</think>") + "</think>".length : 0;
  const answer = row.answer ? text.lastIndexOf(row.answer) : -1;
  cuts.add(thought);
  if (answer >= 0) cuts.add(answer).add(answer + row.answer.length);
  const shade = SHADES[state.shade];
  const ends = shade && row[shade[0]] ? utf16(text, row.token_ends ?? []) : [];
  for (const end of ends) cuts.add(end);
  const places = [...cuts].filter((place) => place <= text.length).sort((a, b) => a - b);
  let token = 0;
  const pieces = places.slice(1).map((end, number) => {
    const start = places[number];
    while (token < ends.length && ends[token] <= start) token++;
    const inAnswer = answer >= 0 && start >= answer && end <= answer + row.answer.length;
    const piece = h(inAnswer ? "mark" : "span", { className: end <= thought ? "thought" : "" }, text.slice(start, end));
    if (token < ends.length) {
      const strength = Math.max(0, shade[2](row[shade[0]][token]));
      piece.style.background = `color-mix(in srgb, var(--${shade[3]}) ${Math.round(70 * strength)}%, transparent)`;
      piece.title = Object.values(SHADES).filter(([column]) => row[column]?.length).map(([column, label]) => `${label} ${short(row[column][token])}`).join(", ");
    }
    return piece;
  });
  return h("pre", { className: "text completion" }, pieces);
}

// Offsets of characters, as Python counts them, in UTF-16, as JavaScript does.
function utf16(text, ends) {
  if (!/[\ud800-\udfff]/.test(text)) return ends;
  const starts = [0];
  for (const character of text) starts.push(starts.at(-1) + character.length);
  return ends.map((end) => starts[Math.min(end, starts.length - 1)]);
}
