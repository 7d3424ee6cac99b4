// Where runs and completions come from: blocks within this file (a report), or the server of `tinyzero view`.
// Both have listed(), load(names), query(run, filters, offset, limit), texts(run, ids), compare(sides) and prepare(run).

const MOST_FLIPS = 100;
const MOST_ROWS = 50_000; // that a server sends at once

async function unpack(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const cell = (column, place) => {
  if (!column.codes) return column[place];
  const code = column.codes[place];
  return code === null ? null : column.values[code];
};

const parsed = new Promise((done) => (document.readyState === "loading" ? addEventListener("DOMContentLoaded", done, { once: true }) : done()));

// What changed between two selections, problem by problem.
class Source {
  constructor(page) {
    this.page = page;
  }

  // All rows that pass the filters, by problem.
  async problems(run, filters) {
    let rows = [], total = 1;
    while (rows.length < total) {
      const next = await this.query(run, filters, rows.length, MOST_ROWS);
      rows = rows.concat(next.rows);
      total = next.rows.length ? next.total : 0;
    }
    return byProblem(rows);
  }

  // As `tinyzero compare` does; a test holds both equal.
  async compare(sides) {
    const [first, second] = await Promise.all(sides.map(({ run, filters }) => this.problems(run, filters)));
    const shared = [...first.keys()].filter((problem) => problem !== null && second.has(problem)).map((problem) => [problem, first.get(problem), second.get(problem)]);
    if (!shared.length) return { problems: 0 };
    const metrics = Object.entries(QUANTITIES).map(([name, of]) => this.difference(name, shared.map(([, a, b]) => [meanOf(a, of), meanOf(b, of)])));
    const changes = shared.map(([problem, a, b]) => ({ problem, rates: [a, b].map((rows) => meanOf(rows, QUANTITIES.accuracy)), rows: [a[0], b[0]] }));
    const flips = (sign) => {
      const by = (one) => sign * (one.rates[1] - one.rates[0]);
      const some = changes.filter((one) => by(one) > 0).sort((one, two) => by(two) - by(one));
      return { total: some.length, first: some.slice(0, MOST_FLIPS) };
    };
    const occurs = (one) => one && (!(one.name in REASONS) || one.baseline > 0 || one.other > 0);
    const [better, worse] = [flips(1), flips(-1)];
    return { problems: shared.length, metrics: metrics.filter(occurs), better, worse, remark: this.page.remarks[better.total + worse.total] ?? null };
  }

  // Of the problems that both sides know; null where there is none.
  difference(name, pairs) {
    const known = pairs.filter(([a, b]) => Number.isFinite(a + b));
    const size = known.length;
    if (!size) return null;
    const average = (values) => values.reduce((sum, value) => sum + value, 0) / size;
    const changes = known.map(([a, b]) => b - a);
    const difference = average(changes);
    const varies = size > 1 && (changes[0] === 0 || changes.some((one) => one !== changes[0]));
    const spread = varies && studentT(size - 1, this.page.studentT) * Math.sqrt(average(changes.map((one) => (one - difference) ** 2)) / (size - 1));
    const most = ["mean score", "tokens"].includes(name) ? Infinity : 1; // what else is compared is a fraction
    const interval = varies ? [Math.max(-most, difference - spread), Math.min(most, difference + spread)] : null;
    return { name, problems: size, baseline: average(known.map(([a]) => a)), other: average(known.map(([, b]) => b)), difference, interval };
  }
}

class FileSource extends Source {
  unpacked = new Map();

  listed() {
    return this.page.runs.map((run) => ({ name: run.name, isRun: run.isRun }));
  }

  async load(names) {
    return this.page.runs.filter((run) => names.includes(run.name));
  }

  // Found once for all runs; they follow the script, so that the page shows before they are read.
  async blocks(run) {
    await parsed;
    if (!this.blocksByRun) {
      this.blocksByRun = {};
      for (const script of document.querySelectorAll("script[type='application/json']:not(#data)")) {
        const block = JSON.parse(script.textContent);
        script.remove();
        (this.blocksByRun[block.run] ??= []).push(block);
      }
    }
    return this.blocksByRun[run] ?? [];
  }

  unpackedBlock(block) {
    if (!this.unpacked.has(block)) this.unpacked.set(block, unpack(block.gzip).then((data) => { block.gzip = null; return data; }));
    return this.unpacked.get(block);
  }

  async index(run) {
    return this.unpackedBlock((await this.blocks(run)).find((one) => one.first === null));
  }

  row(index, place) {
    return Object.fromEntries(Object.entries(index).map(([name, column]) => [name, cell(column, place)]));
  }

  async query(run, filters, offset, limit) {
    const index = await this.index(run);
    let places = this.select(index, filters);
    if (filters.text) places = await this.search(run, index, places, filters.text.toLowerCase());
    if (filters.sort && index[filters.sort]) {
      const keys = new Map(places.map((place) => [place, cell(index[filters.sort], place)]));
      const sign = filters.descending ? -1 : 1;
      places.sort((one, two) => {
        const a = keys.get(one), b = keys.get(two);
        if (a === b) return one - two;
        if (a === null || b === null) return a === null ? 1 : -1;
        return a < b ? -sign : sign;
      });
    }
    return { total: places.length, rows: places.slice(offset, offset + limit).map((place) => this.row(index, place)) };
  }

  select(index, filters) {
    const tests = [];
    const oneOf = (name, values) => {
      const column = index[name];
      if (!column.codes) return tests.push((place) => values.includes(column[place]));
      const codes = new Set(values.map((value) => column.values.indexOf(value)));
      return tests.push((place) => codes.has(column.codes[place]));
    };
    for (const name of ["reason", "task", "split", "decoding"]) if (filters[name]?.length) oneOf(name, filters[name]);
    if ("problem" in filters) oneOf("problem", [filters.problem]);
    for (const name of ["step", "difficulty", "score"]) {
      const [low, high] = filters[name] ?? [null, null];
      const at = (place) => cell(index[name], place);
      if (low !== null) tests.push((place) => at(place) !== null && at(place) >= low);
      if (high !== null) tests.push((place) => at(place) !== null && at(place) <= high);
    }
    if (typeof filters.cut_off === "boolean") tests.push((place) => cell(index.finished, place) === !filters.cut_off);
    const places = [];
    for (let place = 0; place < index.id.length; place++) if (tests.every((test) => test(place))) places.push(place);
    return places;
  }

  async search(run, index, places, text) {
    const blocks = (await this.blocks(run)).filter((block) => block.first !== null);
    const data = await Promise.all(blocks.map((block) => this.unpackedBlock(block)));
    for (const block of data) {
      block.lower ??= ["prompt", "completion"].map((name) =>
        block[name].codes ? { values: block[name].values.map((value) => value?.toLowerCase()), codes: block[name].codes } : block[name].map((value) => value?.toLowerCase()));
    }
    let current = 0;
    return places.filter((place) => {
      while (current + 1 < blocks.length && blocks[current + 1].first <= place) current++;
      const [prompts, completions] = data[current].lower;
      const own = place - blocks[current].first;
      return cell(completions, own)?.includes(text) || cell(prompts, own)?.includes(text) || cell(index.answer, place)?.toLowerCase().includes(text);
    });
  }

  async texts(run, ids) {
    const index = await this.index(run);
    this.places ??= {};
    const blocks = (await this.blocks(run)).filter((block) => block.first !== null);
    const places = (this.places[run] ??= new Map(index.id.map((id, place) => [id, place])));
    return Promise.all(ids.map(async (id) => {
      if (!places.has(id)) return null;
      const place = places.get(id);
      const block = blocks.findLast((one) => one.first <= place);
      const data = await this.unpackedBlock(block);
      const texts = Object.fromEntries(Object.keys(data).filter((name) => name !== "lower").map((name) => [name, cell(data[name], place - block.first)]));
      return { ...this.row(index, place), ...texts };
    }));
  }

  // So that the first search needs no wait.
  async prepare(run) {
    await this.search(run, await this.index(run), [], "");
  }
}

// What is compared, of each row; null where unknown.
const QUANTITIES = {
  accuracy: (row) => row.correct === true,
  "mean score": (row) => row.score,
  "cut off": (row) => row.finished === null ? null : !row.finished,
  tokens: (row) => row.num_tokens,
  ...Object.fromEntries(["ok", "wrong", "no_answer", "malformed", "error", "timeout"].map((reason) => [reason, (row) => row.reason === reason])),
};

function byProblem(rows) {
  const problems = new Map();
  for (const row of rows) problems.has(row.problem) ? problems.get(row.problem).push(row) : problems.set(row.problem, [row]);
  return problems;
}

function meanOf(rows, of) {
  const values = rows.map(of).filter((value) => value !== null && value !== undefined);
  return values.reduce((sum, value) => sum + Number(value), 0) / values.length; // of none, NaN
}

// The 97.5% quantile of Student's t: `few` from 1 degree of freedom on, then Abramowitz and Stegun (1964), 26.7.5.
function studentT(freedom, few) {
  if (freedom <= few.length) return few[freedom - 1];
  const z = 1.959963984540054;
  const terms = [z, (z ** 3 + z) / 4, (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96, (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384, (79 * z ** 9 + 776 * z ** 7 + 1482 * z ** 5 - 1920 * z ** 3 - 945 * z) / 92160];
  return terms.reduce((sum, term, power) => sum + term / freedom ** power, 0);
}

class ServerSource extends Source {
  async ask(path, parameters) {
    const response = await fetch(`${path}?${new URLSearchParams(parameters)}`);
    if (!response.ok) throw new Error(await response.text());
    return response.json();
  }

  async refresh() {
    this.list = await this.ask("runs", []);
  }

  listed() {
    return this.list;
  }

  load(names) {
    return this.ask("describe", names.map((name) => ["run", name]));
  }

  query(run, filters, offset, limit) {
    return this.ask("completions", { run, filters: JSON.stringify(filters), offset, limit });
  }

  texts(run, ids) {
    return this.ask("texts", [["run", run], ...ids.map((id) => ["id", id])]);
  }

  prepare() {}
}
