// The learning curves: a chart for each panel, all with one x axis, one cursor and one zoom.

const AXES = {
  step: { label: "step", value: (run) => run.steps, format: (x) => count(Math.round(x)) },
  tokens: { label: "tokens", value: (run) => run.axes.tokens, format: short },
  seconds: { label: "hours", value: (run) => run.axes.seconds?.map((second) => second / 3600), format: (x) => `${Number(x.toPrecision(4))}` },
};
const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)); // distances of ticks
const DASHES = [[], [6, 3]]; // more are hard to tell apart
const SERIES_COLORS = 8;
const MOST_METRICS = 24; // charts of a search among all metrics

let charts = [];
const resizes = new ResizeObserver((entries) => {
  for (const entry of entries) entry.target.chart?.setSize({ width: Math.floor(entry.contentRect.width), height: chartHeight() });
});
// What is drawn against: the chosen unit, if any run has it.
const axisName = () => (chosenRuns().some((run) => AXES[state.x].value(run)?.length) ? state.x : "step");
const chartHeight = () => (innerWidth < 600 ? 170 : 200);

function dropCharts() {
  for (const chart of charts) {
    resizes.unobserve(chart.root.parentElement);
    chart.destroy();
  }
  charts = [];
}

function curvesView() {
  const body = h("div", {});
  const metrics = h("div", {});
  const find = h("input", { type: "search", placeholder: "Find a metric, such as grad_norm", "aria-label": "Find a metric", value: state.metric, oninput: debounced((event) => show({ metric: event.target.value }), 150) });
  const smooth = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, "aria-label": "Smoothing", value: state.smooth, oninput: debounced((event) => show({ smooth: event.target.value }), 60) });
  const axis = h("span", { className: "choice", role: "group", "aria-label": "Horizontal axis" },
    Object.entries(AXES).map(([name, { label }]) => h("button", { type: "button", value: name, onclick: () => show({ x: name, from: "", to: "" }) }, label)));
  const whole = h("button", { type: "button", className: "quiet", onclick: () => show({ from: "", to: "" }) }, "Whole range");
  const controls = h("div", { className: "controls" }, h("span", {}, "Axis ", axis), h("label", {}, "Smoothing ", smooth), whole);

  function draw() {
    dropCharts();
    const runs = chosenRuns().filter((run) => run.isRun);
    if (!chosenRuns().length) return replace(body, empty("No run is loaded.", "Choose one on the left."));
    if (!runs.length) return replace(body, empty("Scored files have no learning curves.", "Open “Evaluations” or “Completions”."));
    const sections = [];
    for (const [name, panels] of Object.entries(PANELS)) {
      const figures = panels.flatMap((panel) => figuresOf(panel, runs)).filter(Boolean);
      if (figures.length) sections.push(h("section", {}, h("h2", {}, name), h("div", { className: "panels" }, figures)));
    }
    if (!sections.length) sections.push(empty("No step has been written yet.", "The curves appear with the first line of metrics.jsonl."));
    replace(body, sections, h("section", {}, h("h2", {}, "All metrics"), find, metrics));
    drawMetrics();
    for (const holder of body.querySelectorAll(".chart")) holder.draw();
  }

  function drawMetrics() {
    for (const old of metrics.querySelectorAll(".chart")) {
      charts = charts.filter((chart) => chart !== old.chart);
      resizes.unobserve(old);
      old.chart?.destroy();
    }
    const runs = chosenRuns().filter((run) => run.isRun);
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].sort();
    const words = state.metric.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = names.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
    if (!words.length) {
      return replace(metrics, h("p", { className: "hint" }, `${plural(names.length, "metric")}: `, names.map((name, place) => [place ? ", " : "", h("button", { type: "button", className: "link", onclick: () => { find.value = name; show({ metric: name }); } }, name)])));
    }
    const figures = hits.slice(0, MOST_METRICS).map((name) => panelFigure({ title: name, unit: "", series: [[name, name]] }, runs));
    replace(metrics, h("p", { className: "hint" }, hits.length ? `${plural(hits.length, "metric")}${hits.length > MOST_METRICS ? `, of which the first ${MOST_METRICS} are drawn` : ""}` : `No metric has “${state.metric}” in its name.`), h("div", { className: "panels" }, figures));
    for (const holder of metrics.querySelectorAll(".chart")) holder.draw();
  }

  function update(changed) {
    for (const button of axis.children) {
      button.setAttribute("aria-pressed", button.value === axisName());
      button.disabled = !chosenRuns().some((run) => AXES[button.value].value(run)?.length);
    }
    whole.hidden = !state.from && !state.to;
    smooth.value = state.smooth;
    if (document.activeElement !== find) find.value = state.metric;
    const only = (...names) => [...changed].every((name) => names.includes(name));
    if (only("metric")) drawMetrics();
    else if (only("from", "to")) for (const chart of charts) chart.setScale("x", zoomOf());
    else if (changed.has("view") || only("runs", "x", "smooth", "from", "to", "theme", "data")) draw();
  }

  return { element: h("div", {}, controls, body), update, leave: dropCharts };
}

// The zoom, as far as there is anything, or else the extent of all chosen runs, in every panel alike.
function zoomOf() {
  const ends = chosenRuns().flatMap((run) => { const axis = AXES[axisName()].value(run); return axis?.length ? [axis[0], axis.at(-1)] : []; });
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const [from, to] = [Math.max(low, Number(state.from)), Math.min(high, Number(state.to))];
  return state.from && state.to && from < to ? { min: from, max: to } : { min: low, max: high };
}

// Exponential moving average without the pull of its start, as of an unbiased estimate.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// A chart of a panel; of several runs one for each run, or for each series, where there are more than dashes tell apart.
function figuresOf(panel, runs) {
  if (runs.length === 1) return [panelFigure(panel, runs)];
  if (panel.stack) return runs.map((run) => panelFigure({ ...panel, title: `${panel.title}, ${run.name}` }, [run]));
  const labels = [...new Set(runs.flatMap((run) => seriesOf(run, panel).map((one) => one.label)))];
  if (labels.length <= DASHES.length) return [panelFigure(panel, runs)];
  const most = panel.unit === "%" ? Math.max(...linesOf(panel, runs).flatMap((line) => [...line.ys, ...(line.band?.[1] ?? [])])) : null;
  return labels.map((label) => panelFigure({ ...panel, title: `${panel.title}: ${label}`, only: label, most }, runs));
}

// All the lines of a panel, with their x in the chosen unit. Of several runs the colour tells which.
function linesOf(panel, runs) {
  const scale = panel.unit === "%" ? 100 : 1, unit = axisName();
  const curves = runs.flatMap((run) => seriesOf(run, panel).map((one) => ({ ...one, run, axis: AXES[unit].value(run) })))
    .filter((one) => one.axis?.length && (!panel.only || one.label === panel.only));
  const labels = [...new Set(curves.map((one) => one.label))];
  const several = runs.length > 1 && !panel.stack;
  return curves.map((one) => {
    const xs = one.curve[0].map(unit === "step" ? (step) => step : interpolated([one.run.steps, one.axis]));
    const ys = one.curve[1].map((value) => value * scale);
    const number = labels.indexOf(one.label);
    const band = panel.band && one.run.bands[one.metric]?.map((end) => end.map((value) => value * scale));
    const name = several ? runColor(one.run) : one.color ?? `series-${number % SERIES_COLORS}`;
    return { label: several ? `${one.run.name}${labels.length > 1 ? `, ${one.label}` : ""}` : one.label, xs, ys, band, stroke: color(name), dash: several ? DASHES[number] : [] };
  });
}

function panelFigure(panel, runs) {
  const lines = linesOf(panel, runs);
  if (!lines.length) return null;
  const legend = h("div", { className: "legend" });
  const holder = h("div", { className: "chart" });
  holder.draw = () => {
    if (holder.chart) return;
    holder.chart = panel.stack ? stackedChart(holder, legend, panel, lines) : lineChart(holder, legend, panel, lines);
    charts.push(holder.chart);
    resizes.observe(holder);
  };
  return h("figure", {}, h("figcaption", {}, h("b", {}, panel.title), panel.unit && h("span", { className: "unit" }, panel.unit)), legend, holder);
}

function lineChart(holder, legend, panel, lines) {
  const weight = panel.dots ? 0 : Number(state.smooth);
  const sparse = panel.dots || lines.every((line) => line.ys.length < 30);
  const tables = [], series = [{}], bands = [], items = [];
  const add = (xs, ys, options) => {
    tables.push([xs, ys]);
    series.push({ spanGaps: true, points: { show: false }, width: 1.75, ...options });
    return series.length - 1;
  };
  for (const line of lines) {
    if (line.band) {
      const ends = line.band.map((values) => add(line.xs, values, { width: 0, stroke: "transparent" }));
      bands.push({ series: [ends[1], ends[0]], fill: `${line.stroke}30` });
    }
    const smooth = weight > 0 && line.ys.length > 4;
    if (smooth) add(line.xs, line.ys, { stroke: `${line.stroke}40`, width: 1 });
    const dots = sparse || line.ys.length === 1 ? { show: true, size: 4, fill: line.stroke } : { show: false };
    const place = add(line.xs, smooth ? smoothed(line.ys, weight) : line.ys, { stroke: line.stroke, dash: line.dash, points: dots });
    items.push({ ...line, place });
  }
  return newChart(holder, legend, panel, series, bands, joined(tables), items);
}

// uPlot.join needs x in rising order; of equal ones the last counts.
function joined(tables) {
  return uPlot.join(tables.map(([xs, ys]) => {
    const kept = [...xs.keys()].filter((place) => place + 1 === xs.length || xs[place] < xs[place + 1]);
    return [kept.map((place) => xs[place]), kept.map((place) => ys[place])];
  }));
}

function stackedChart(holder, legend, panel, lines) {
  let [xs] = joined(lines.map(({ xs, ys }) => [xs, ys]));
  const { min, max } = zoomOf();
  if (xs.length === 1) xs = [xs[0] - 0.04 * (max - min || 1), xs[0]]; // a point has no area
  const weight = Number(state.smooth);
  let below = xs.map(() => 0);
  const data = [xs], series = [{}], bands = [], items = [];
  for (const line of lines) {
    const own = smoothed(xs.map(interpolated([line.xs, line.ys])), weight);
    below = below.map((value, place) => value + own[place]);
    data.push(below);
    series.push({ stroke: line.stroke, width: 1, points: { show: false }, fill: series.length === 1 ? `${line.stroke}b0` : undefined });
    if (series.length > 2) bands.push({ series: [series.length - 1, series.length - 2], fill: `${line.stroke}b0` });
    items.push({ ...line, place: series.length - 1, own });
  }
  return newChart(holder, legend, panel, series, bands, data, items);
}

function newChart(holder, legend, panel, series, bands, data, items) {
  const unit = axisName(), axis = AXES[unit];
  const marks = { stroke: color("muted"), grid: { stroke: color("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const values = items.map((item) => {
    const value = h("span", { className: "value" });
    const button = h("button", { type: "button", "aria-pressed": true, title: "Show or hide", onclick: () => {
      if (panel.stack) return;
      const shown = !chart.series[item.place].show;
      button.setAttribute("aria-pressed", shown);
      chart.setSeries(item.place, { show: shown });
    } }, h("i", { className: item.dash.length ? "dashed" : "", style: { borderColor: item.stroke, backgroundColor: item.dash.length ? "transparent" : item.stroke } }), item.label, " ", value);
    legend.append(button);
    return value;
  });
  const at = h("span", { className: "at" });
  legend.append(at);
  const write = panel.unit === "%" ? shortPercent : short;
  const describe = (chart) => {
    const hovered = chart.cursor.idx ?? null;
    items.forEach((item, place) => {
      const index = chart.cursor.idxs?.[item.place] ?? hovered ?? lastPresent(chart.data[item.place]);
      values[place].textContent = write(item.own ? item.own[index] : chart.data[item.place][index]);
    });
    at.textContent = hovered === null ? "" : `at ${axis.label} ${axis.format(chart.data[0][hovered])}`;
  };
  const percent = panel.unit === "%";
  const chart = new uPlot({
    width: Math.max(160, holder.clientWidth), height: chartHeight(), series, bands, legend: { show: false }, padding: [8, 18, 0, 0],
    scales: {
      x: { time: false, range: (chart, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
      y: { range: (chart, low, high) => (panel.most ? [0, Math.min(100, 1.06 * panel.most)] : yRange(low, high, percent, panel.stack)) },
    },
    axes: [
      { ...marks, size: 28, incrs: unit === "step" ? WHOLE : undefined, values: (chart, splits) => splits.map(axis.format) },
      { ...marks, size: (chart, labels) => Math.max(48, ...(labels ?? []).map((label) => 10 + 7 * label.length)), values: (chart, splits) => ticks(splits) },
    ],
    cursor: { sync: { key: "curves", scales: ["x", null], setSeries: false }, y: false, drag: { x: true, y: false, setScale: false }, hover: { skip: [null, undefined] }, points: { size: 6 } },
    hooks: {
      setCursor: [describe],
      ready: [describe],
      setSelect: [(chart) => {
        const { left, width } = chart.select;
        if (width < 4) return;
        const [from, to] = [left, left + width].map((place) => Number(chart.posToVal(place, "x").toPrecision(6)));
        chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        show({ from, to }, { newEntry: true });
      }],
    },
  }, data, holder);
  chart.over.addEventListener("dblclick", () => show({ from: "", to: "" }));
  chart.setScale("x", zoomOf());
  return chart;
}

function lastPresent(values) {
  let place = values.length - 1;
  while (place > 0 && (values[place] === null || values[place] === undefined)) place--;
  return place;
}

function yRange(low, high, isShare, stacked) {
  if (low === null) return [0, 1];
  if (stacked) return [0, isShare ? 100 : high * 1.05];
  const flat = high - low <= 1e-6 * Math.abs(high); // but for rounding
  const spread = flat ? Math.abs(high) || 1 : high - low;
  let [bottom, top] = [low - 0.06 * spread, high + 0.06 * spread];
  if (low >= 0 && low < 0.5 * high) bottom = 0; // zero near the data: show it
  if (low >= 0) bottom = Math.max(0, bottom);
  if (isShare) top = Math.min(100, Math.max(top, bottom + 1));
  return [bottom, top];
}
