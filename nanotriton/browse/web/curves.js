// The first tab: what became of each setting, the verdicts over the steps, and a curve for every number.

// [stages, name of the number, title, what it says, options]. Others follow below them, under their own
// names.
const MAIN_CURVES = [
  ["grpo", "reward", "reward", "mean over the samples of a step"],
  [
    "grpo/test grpo/eval",
    "success",
    "held-out success",
    "at temperature 1; test tasks at both ends, dev between",
    { dots: true },
  ],
  [
    "grpo/test grpo/eval",
    "greedy",
    "held-out success, greedy",
    "test tasks at both ends, dev between",
    { dots: true },
  ],
  ["grpo", "no_spread", "no spread", "share of groups whose rewards are all the same; they teach nothing"],
  ["grpo", "pass_at_k", "pass@group", "share of tasks that some sample of the group solved"],
  ["grpo", "length", "length", "tokens of a completion"],
  ["grpo", "truncated", "truncated", "share of completions that reached the longest length"],
  ["grpo", "entropy", "entropy", "of the policy, nats a token"],
  ["grpo", "kl_sampler", "kl to the sampler", "how far the step's updates moved the policy from the one that sampled"],
  ["grpo", "kl_ref", "kl to the reference", "the policy against the model at the start"],
  ["grpo", "clip_fraction", "clip fraction", "share of tokens at which the clip held the step back"],
  ["grpo", "norm", "gradient norm", "before clipping"],
  ["sft", "loss", "SFT loss", "nats a token", { log: true }],
  ["sft/eval", "eval_loss", "held-out SFT loss", "nats a token", { log: true, dots: true }],
];

// What the user chose: smoothing, seeds apart, settings that are not drawn, folds that are open.
const curves = { weight: 0.6, apart: false, hidden: new Set(), open: new Set() };

function curvesTab(page) {
  const body = el("div", { class: "curves" });
  const draw = beforeDrawing(() => body.replaceChildren(...curveSections(page)));
  const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: curves.weight });
  slider.addEventListener("input", () => {
    curves.weight = +slider.value;
    draw();
  });
  const apart = el("input", { type: "checkbox", checked: curves.apart });
  apart.addEventListener("change", () => {
    curves.apart = apart.checked;
    draw();
  });
  const several = page.groups.some((group) => group.runs.length > 1);
  const controls = el(
    "div",
    { class: "controls" },
    el("label", {}, "smoothing ", slider),
    several && el("label", {}, apart, " each seed by itself"),
    several && el("span", { class: "muted" }, "line: mean over seeds; band: lowest to highest seed"),
  );
  draw();
  return el("div", { class: "page" }, settingsTable(page, draw), controls, body);
}

// One line for each setting: it is the legend of all curves too.
function settingsTable(page, draw) {
  const heads = [
    "",
    "setting",
    "runs",
    "steps",
    "reward",
    "",
    "held-out success",
    "",
    "most frequent failure",
  ];
  const rows = page.groups.map((group, number) => {
    const box = el("input", {
      type: "checkbox",
      checked: !curves.hidden.has(number),
      title: "draw its curves",
    });
    box.addEventListener("change", () => {
      if (box.checked) curves.hidden.delete(number);
      else curves.hidden.add(number);
      draw();
    });
    const runs = group.runs.map((k) => page.runs[k]);
    const stages = runs.some((run) => run.curves.grpo) ? ["grpo/test", "grpo/eval"] : ["sft/eval"];
    const [before, after] = ends(runs, stages, "success", 1);
    const [, error] = ends(runs, stages, "success_se", 1);
    const [early, late] = ends(runs, ["grpo"], "reward", 5);
    const steps = Math.max(
      0,
      ...runs.flatMap((run) => run.curves.grpo?.reward?.[0] ?? run.curves.sft?.loss?.[0] ?? []),
    );
    return el(
      "tr",
      {},
      el("td", {}, box),
      el(
        "td",
        {},
        swatch(lineColor(number)),
        el("b", {}, group.name),
        page.groups.length > 1 && el("div", { class: "muted small" }, group.differs),
      ),
      el("td", {}, runs.map((run) => run.name + (run.seed === null ? "" : ` (seed ${run.seed})`)).join(", ")),
      el("td", { class: "right" }, show(steps)),
      ...change(early, late, show),
      ...change(before, after, percent, error),
      el("td", {}, ...commonFailure(runs)),
    );
  });
  return el(
    "table",
    { class: "table overview" },
    el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", {}, text)))),
    el("tbody", {}, ...rows),
  );
}

// A number at the start and at the end of the runs: means of `window` values each, then over the runs.
function ends(runs, stages, key, window) {
  const found = runs.map((run) => {
    const points = joined(stages.map((stage) => run.curves[stage]?.[key] ?? [[], []])).map(
      (p) => p.values[0],
    );
    return points.length ? [mean(points.slice(0, window)), mean(points.slice(-window))] : null;
  });
  const there = found.filter(Boolean);
  return [mean(there.map(([first]) => first)), mean(there.map(([, last]) => last))];
}

// Two cells. `error` is the standard error of the second number: a change that is no larger is not
// coloured.
function change(before, after, write, error = NaN) {
  if (!Number.isFinite(after)) return [el("td", { class: "muted" }, "–"), el("td")];
  const clear = after !== before && !(Math.abs(after - before) <= error);
  const moved = `${after >= before ? "+" : "−"}${write(Math.abs(after - before))}`;
  return [
    el(
      "td",
      {},
      `${write(before)} → `,
      el("b", {}, write(after)),
      Number.isFinite(error) && el("span", { class: "muted" }, ` ± ${write(error)}`),
    ),
    el("td", { class: clear ? (after > before ? "better" : "worse") : "muted" }, moved),
  ];
}

function commonFailure(runs) {
  const counts = {};
  let total = 0;
  for (const run of runs) {
    for (const [status, numbers] of Object.entries(run.mix.grpo?.counts ?? {})) {
      const sum = numbers.reduce((a, b) => a + b, 0);
      total += sum;
      if (status !== "correct") counts[status] = (counts[status] ?? 0) + sum;
    }
  }
  const [status, number] = Object.entries(counts).sort((a, b) => b[1] - a[1])[0] ?? [];
  return status ? [statusBadge(status), ` ${percent(number / total)}`] : ["–"];
}

// The main curves, with the named parts of the reward behind the reward.
function mainCurves(page) {
  const keys = new Set(page.runs.flatMap((run) => Object.keys(run.curves.grpo ?? {})));
  const parts = [...keys].filter((key) => key.startsWith("reward/"));
  return [
    MAIN_CURVES[0],
    ...parts.map((key) => ["grpo", key, key, "mean of this part of the reward"]),
    ...MAIN_CURVES.slice(1),
  ];
}

function curveSections(page) {
  const groups = page.groups
    .map((group, number) => ({ ...group, number }))
    .filter((g) => !curves.hidden.has(g.number));
  const known = new Set();
  const main = mainCurves(page).flatMap(([stages, key, title, says, options]) => {
    for (const stage of stages.split(" ")) known.add(`${stage} ${key}`);
    return curveCard(page, groups, stages.split(" "), key, title, says, options);
  });
  const others = {};
  for (const run of page.runs) {
    for (const [stage, found] of Object.entries(run.curves)) {
      for (const key of Object.keys(found)) {
        const kind = key.startsWith("seconds.") ? "seconds of each step" : "all other numbers";
        if (!known.has(`${stage} ${key}`)) (others[kind] ??= new Map()).set(`${stage} ${key}`, [stage, key]);
      }
    }
  }
  return [
    el("div", { class: "cards" }, ...mixCards(page, groups), ...main),
    ...Object.entries(others).map(([kind, found]) =>
      folded(kind, () =>
        [...found.values()].flatMap(([stage, key]) => curveCard(page, groups, [stage], key, key, stage)),
      ),
    ),
  ];
}

// Cards that are drawn when they are first looked at.
function folded(title, cards) {
  const inner = el("div", { class: "cards" });
  const details = el("details", { open: curves.open.has(title) }, el("summary", {}, title), inner);
  const fillIt = () => {
    curves.open[details.open ? "add" : "delete"](title);
    if (details.open && !inner.childElementCount) inner.append(...cards());
  };
  details.addEventListener("toggle", fillIt);
  if (details.open) fillIt();
  return details;
}

function curveCard(page, groups, stages, key, title, says, options = {}) {
  const series = groups.map((group) => ({
    name: group.name,
    color: lineColor(group.number),
    lines: group.runs.map((k) => runLine(page.runs[k], stages, key)).filter(Boolean),
  }));
  const pick = stages.includes("grpo") ? (step) => page.lookAt({ from: step, to: step }) : undefined;
  const chart = lineChart(
    series.filter((s) => s.lines.length),
    { ...options, weight: curves.weight, apart: curves.apart, pick },
  );
  if (!chart) return [];
  return [
    el(
      "figure",
      { class: "card" },
      el("figcaption", {}, el("b", {}, title), el("span", { class: "muted" }, says)),
      chart,
    ),
  ];
}

// [steps, values] of one run, joined over stages; null where it has none.
function runLine(run, stages, key) {
  const points = joined(stages.map((stage) => run.curves[stage]?.[key] ?? [[], []]));
  return points.length ? [points.map((p) => p.step), points.map((p) => p.values[0])] : null;
}

// The verdicts of each setting over its training steps, summed over its seeds.
function mixCards(page, groups) {
  return groups.flatMap((group) => {
    const mix = summedMix(group.runs.map((k) => page.runs[k].mix.grpo).filter(Boolean));
    if (!mix.steps.length) return [];
    const pick = (step) => page.lookAt({ from: step, to: step });
    const { node, order } = statusChart(mix, { weight: curves.weight, pick });
    const legend = order.slice(0, 9).map((status) => el("span", {}, swatch(statusColor(status)), status));
    const caption = el("figcaption", {}, el("b", {}, "verdicts"), el("span", { class: "muted" }, group.name));
    return [el("figure", { class: "card" }, caption, node, el("div", { class: "legend" }, ...legend))];
  });
}

function summedMix(mixes) {
  const steps = [...new Set(mixes.flatMap((mix) => mix.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, k) => [step, k]));
  const counts = {};
  for (const mix of mixes) {
    for (const [status, numbers] of Object.entries(mix.counts)) {
      counts[status] ??= steps.map(() => 0);
      numbers.forEach((n, k) => (counts[status][place.get(mix.steps[k])] += n));
    }
  }
  return { steps, counts };
}
