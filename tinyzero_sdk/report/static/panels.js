// Which metrics go into which panel, by their names in metrics.jsonl. All others are under "All metrics".
// A series is [name or pattern, label]; `$1` in a label is the pattern's group. `unit` "%" is for shares of 1.

const PANELS = {
  Learning: [
    { title: "Held-out accuracy", unit: "%", band: true, dots: true, series: [[/^val-core\/(.+)\/acc\/mean@\d+$/, "$1"], [/^val-aux\/(.+)\/acc_greedy\/mean@1$/, "$1, greedy"]] },
    { title: "Held-out pass@k", unit: "%", dots: true, series: [[/^val-(?:core|aux)\/(.+)\/acc\/best@(\d+)\/mean$/, "$1, pass@$2"]] },
    { title: "Training accuracy", unit: "%", series: [["completion/acc_mean", "all completions"], [/^task\/(.+)\/acc$/, "$1"]] },
    { title: "Reward", unit: "", distinct: true, series: [["critic/score/mean", "score"], ["critic/rewards/mean", "with penalties, trained on"], [/^task\/(.+)\/score$/, "$1"], [/^reward\/part\/(.+)$/, "$1"]] },
    { title: "Audit: falsely rewarded, falsely not", unit: "%", series: [["audit/false_positive_rate", "rewarded, and wrong"], ["audit/false_negative_rate", "not rewarded, and right"], [/^audit\/([^/]+)\/false_positive_rate$/, "$1, rewarded and wrong"]] },
    { title: "Accuracy by difficulty, training", unit: "%", series: [[/^train\/acc_by_difficulty\/(.+)$/, "level $1"]] },
    { title: "Loss", unit: "", series: [["train/loss", "training"], ["val/loss", "held-out"]] },
  ],
  Completions: [
    { title: "Outcomes", unit: "%", stack: true, outcomes: true },
    { title: "Length", unit: "tokens", series: [["response_length/mean", "all"], ["completion/correct_length_mean", "right"]] },
    { title: "Cut off", unit: "%", series: [["completion/truncated_frac", "training"], [/^val-aux\/(.+)\/truncated_frac$/, "held-out $1"]] },
    { title: "Groups without variance", unit: "%", series: [["group/zero_std_frac", "groups"]] },
  ],
  Policy: [
    { title: "Entropy", unit: "nats", series: [["actor/entropy", "per token"]] },
    { title: "KL divergence", unit: "nats", series: [["actor/kl_loss", "to the reference"], ["actor/ppo_kl", "to the old policy"], ["rollout_corr/kl", "engine and trainer"], ["teacher/reverse_kl", "to the teacher"]] },
    { title: "Clipped tokens", unit: "%", series: [["actor/pg_clipfrac", "clipped"], ["actor/ratio/outside_clip_frac", "ratio outside the bounds"]] },
    { title: "Gradient norm", unit: "", series: [["actor/grad_norm", "policy"], ["critic/grad_norm", "critic"]] },
    { title: "Learning rate", unit: "", series: [["actor/lr", "policy"], ["critic/lr", "critic"]] },
  ],
  "Time and memory": [
    { title: "Time of a step by phase", unit: "s", stack: true, series: [[/^timing_s\/(?!step$|testing$|startup)(.+)$/, "$1"]] },
    { title: "Throughput", unit: "tokens/s", series: [["perf/throughput", "prompts and completions"]] },
    { title: "GPU memory", unit: "GB", series: [[/^perf\/max_memory_(.+)_gb$/, "$1, most"]] },
    { title: "Model FLOPs utilization", unit: "%", series: [[/^perf\/mfu\/(.+)$/, "$1"]] },
  ],
};

const OUTCOMES = [["ok", "completion/acc_mean"], ["wrong", null], ["malformed", "reward/malformed_frac"], ["no_answer", "reward/no_answer_frac"], ["timeout", "reward/timeout_frac"], ["error", "reward/error_frac"]];

function seriesOf(run, panel) {
  if (panel.outcomes) return outcomes(run);
  const every = [];
  for (const [name, label] of panel.series) {
    for (const metric of typeof name === "string" ? [name] : Object.keys(run.curves).filter((one) => name.test(one))) {
      if (run.curves[metric]) every.push({ metric, label: typeof name === "string" ? label : metric.replace(name, label), curve: curveOf(run, metric) });
    }
  }
  const curves = [...new Map(every.map((one) => [one.label, one])).values()]; // of the accuracies of older runs the one of most samples
  const alike = (one, other) => one.curve[1].length === other.curve[1].length && one.curve[1].every((value, place) => value === other.curve[1][place]);
  // A reward without penalties is the score; two tasks may both stay at 0.
  return panel.distinct ? curves.filter((one, place) => !curves.slice(0, place).some((other) => alike(one, other))) : curves;
}

const curveOf = (run, metric) => [run.curves[metric][0] ?? run.steps, run.curves[metric][1]];

// Shares of the training completions. What is neither right nor another failure is wrong.
function outcomes(run) {
  const [right, ...failures] = OUTCOMES.filter(([reason, metric]) => reason === "ok" || run.curves[metric]);
  if (!run.curves[right[1]] || !failures.length) return [];
  const steps = curveOf(run, right[1])[0];
  const parts = [right, ...failures].map(([reason, metric]) => ({ metric, label: REASONS[reason].label, color: reason, curve: [steps, steps.map(interpolated(curveOf(run, metric)))] }));
  const wrong = steps.map((_, place) => Math.max(0, 1 - parts.reduce((sum, part) => sum + part.curve[1][place], 0)));
  parts.splice(1, 0, { label: REASONS.wrong.label, color: "wrong", curve: [steps, wrong] });
  return parts.filter((part) => part.curve[1].some((value) => value > 0));
}

// A function of x: straight lines between the points, constant outside.
function interpolated([xs, ys]) {
  return (x) => {
    let low = 0, high = xs.length - 1;
    if (x <= xs[low]) return ys[low];
    if (x >= xs[high]) return ys[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle;
      else high = middle;
    }
    return ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / (xs[high] - xs[low]);
  };
}
