// Two kinds of charts, as SVG: lines over steps, and shares stacked over steps. What they have in common
// is a frame with axes and a cross-hair that all charts of the page share.

const CHART = { width: 360, height: 190, left: 46, right: 10, top: 8, bottom: 22 };

// About `count` round numbers from low to high.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

// Powers of ten from low to high, and what lies between where they are few.
function logTicks(low, high) {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of high / low < 30 ? [1, 2, 5] : [1]) {
      if (m * 10 ** e >= low && m * 10 ** e <= high) found.push(m * 10 ** e);
    }
  }
  return found;
}

function tickText(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return value.toExponential(0);
  if (size >= 1e4) return `${+(value / 1000).toPrecision(3)}k`;
  return String(+value.toPrecision(4));
}

// The mean of each moment with those before it, corrected for its start; as log.py's smooth.
function smoothed(values, weight) {
  let total = 0;
  let scale = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = weight * total + (1 - weight) * value;
    scale = weight * scale + (1 - weight);
    return total / scale;
  });
}

// Which step the pointer is at, for every chart that is there.
const crosshair = {
  charts: new Set(),
  move(step, from) {
    for (const chart of this.charts) {
      if (!chart.node.isConnected) this.charts.delete(chart);
      else chart.point(step, chart === from);
    }
  },
};

// x and y: {low, high, log}. pick(step) is told where the user clicked; tip(step) gives the tooltip's
// lines.
class Chart {
  constructor({ x, y, percent: inPercent, pick, tip }) {
    Object.assign(this, { x, y, tip });
    this.node = svg("svg", { class: "chart", viewBox: `0 0 ${CHART.width} ${CHART.height}` });
    this.drawn = svg("g");
    this.rule = svg("line", {
      class: "rule",
      y1: CHART.top,
      y2: CHART.height - CHART.bottom,
      visibility: "hidden",
    });
    this.node.append(this.frame(inPercent), this.drawn, this.rule);
    this.node.addEventListener("pointermove", (event) => this.moved(event));
    this.node.addEventListener("pointerleave", () => this.left());
    if (pick) {
      this.node.classList.add("pickable");
      this.node.addEventListener("click", () => pick(this.step));
    }
    crosshair.charts.add(this);
  }

  toX(step) {
    const { low, high } = this.x;
    return CHART.left + ((step - low) / (high - low || 1)) * (CHART.width - CHART.left - CHART.right);
  }

  toY(value) {
    const at = this.y.log ? Math.log10 : (v) => v;
    const [low, high] = [at(this.y.low), at(this.y.high)];
    const room = CHART.height - CHART.top - CHART.bottom;
    return CHART.height - CHART.bottom - ((at(value) - low) / (high - low || 1)) * room;
  }

  frame(inPercent) {
    const group = svg("g", { class: "axes" });
    for (const value of this.y.log ? logTicks(this.y.low, this.y.high) : ticks(this.y.low, this.y.high, 4)) {
      const y = this.toY(value);
      const text = inPercent ? percent(value) : tickText(value);
      group.append(svg("line", { x1: CHART.left, x2: CHART.width - CHART.right, y1: y, y2: y }));
      group.append(svg("text", { x: CHART.left - 6, y: y + 3.5, "text-anchor": "end" }, text));
    }
    for (const value of ticks(this.x.low, this.x.high, 5).filter(Number.isInteger)) {
      const y = CHART.height - 7;
      group.append(svg("text", { x: this.toX(value), y, "text-anchor": "middle" }, tickText(value)));
    }
    return group;
  }

  moved(event) {
    const box = this.node.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * CHART.width;
    const share = (at - CHART.left) / (CHART.width - CHART.left - CHART.right);
    this.step = Math.round(this.x.low + Math.max(0, Math.min(1, share)) * (this.x.high - this.x.low));
    crosshair.move(this.step, this);
    const lines = this.tip(this.step);
    if (lines) tooltip.show(event.clientX, event.clientY, ...lines);
    else tooltip.hide();
  }

  left() {
    crosshair.move(null, this);
    tooltip.hide();
  }

  point(step) {
    const inside = step !== null && step >= this.x.low && step <= this.x.high;
    this.rule.setAttribute("visibility", inside ? "visible" : "hidden");
    if (!inside) return;
    this.rule.setAttribute("x1", this.toX(step));
    this.rule.setAttribute("x2", this.toX(step));
  }
}

// Steps of several runs, joined: [{step, values: of the runs that have one}], in order.
function joined(lines) {
  const at = new Map();
  for (const [steps, values] of lines) {
    steps.forEach((step, k) => {
      if (values[k] === null) return;
      if (!at.has(step)) at.set(step, []);
      at.get(step).push(values[k]);
    });
  }
  return [...at].sort((a, b) => a[0] - b[0]).map(([step, values]) => ({ step, values }));
}

// series: [{name, color, lines: one [steps, values] for each run}] -> an SVG, or null where there is
// nothing to draw. A line is the mean over its runs; its band reaches from the lowest run to the highest.
function lineChart(series, { weight = 0, apart = false, log = false, dots = false, pick } = {}) {
  const drawn = series.flatMap(({ name, color, lines }) => {
    const smooth = lines.map(([steps, values]) => [
      steps,
      weight && !dots ? smoothed(values, weight) : values,
    ]);
    const sets = apart ? smooth.map((line) => [line]) : [smooth];
    const raw = weight && !dots && (apart || lines.length === 1) ? lines : [];
    return sets.map((set, k) => ({ name, color, points: joined(set), raw: joined(raw.slice(k, k + 1)) }));
  });
  const values = drawn.flatMap((s) => [...s.points, ...s.raw].flatMap((p) => p.values));
  const usable = log ? values.filter((v) => v > 0) : values;
  if (!usable.length) return null;
  const steps = drawn.flatMap((s) => s.points.map((p) => p.step));
  const chart = new Chart({
    x: extent(steps),
    y: { ...padded(extent(usable), log), log },
    pick,
    tip: (step) => lineTip(drawn, step),
  });
  for (const one of drawn) drawLine(chart, one, dots);
  return chart.node;
}

function drawLine(chart, { color, points, raw }, dots) {
  const usable = points.filter((p) => !chart.y.log || Math.min(...p.values) > 0);
  const path = (list, of) =>
    list
      .map((p, k) => `${k ? "L" : "M"}${chart.toX(p.step).toFixed(1)},${chart.toY(of(p)).toFixed(1)}`)
      .join("");
  const averaged = (p) => mean(p.values);
  if (usable.some((p) => p.values.length > 1)) {
    const top = path(usable, (p) => Math.max(...p.values));
    const back = path(usable.toReversed(), (p) => Math.min(...p.values)).replace("M", "L");
    chart.drawn.append(svg("path", { d: `${top}${back}Z`, fill: color, class: "band" }));
  }
  const visible = raw.filter((p) => !chart.y.log || p.values[0] > 0);
  if (visible.length)
    chart.drawn.append(svg("path", { d: path(visible, averaged), stroke: color, class: "raw" }));
  chart.drawn.append(svg("path", { d: path(usable, averaged), stroke: color, class: "mean" }));
  if (dots || usable.length === 1) {
    for (const p of usable) {
      chart.drawn.append(
        svg("circle", { cx: chart.toX(p.step), cy: chart.toY(averaged(p)), r: 2.6, fill: color }),
      );
    }
  }
}

function lineTip(drawn, step) {
  const rows = drawn.map(({ name, color, points }) => {
    const near = points.reduce(
      (a, b) => (a && Math.abs(a.step - step) <= Math.abs(b.step - step) ? a : b),
      null,
    );
    if (!near) return null;
    const several = near.values.length > 1;
    const spread = several ? ` (${show(Math.min(...near.values))} to ${show(Math.max(...near.values))})` : "";
    const at = near.step === step ? "" : ` at ${near.step}`;
    return el("div", {}, swatch(color), `${name} `, el("b", {}, show(mean(near.values))), `${spread}${at}`);
  });
  return [el("div", { class: "muted" }, `step ${step}`), ...rows.filter(Boolean)];
}

function extent(values) {
  return values.reduce(({ low, high }, v) => ({ low: Math.min(low, v), high: Math.max(high, v) }), {
    low: Infinity,
    high: -Infinity,
  });
}

function padded({ low, high }, log) {
  if (log) return { low: low / 1.1, high: high * 1.1 };
  if (low >= 0 && low < 0.4 * high) low = 0; // an axis that nearly reaches 0 reaches it
  if (high - low < 1e-6 * Math.abs(high))
    return { low: low - Math.abs(low) * 0.06, high: high + Math.abs(high) * 0.06 };
  const room = (high - low || 1) * 0.06;
  return { low: low === 0 ? 0 : low - room, high: high + room };
}

// mix: {steps, counts: status -> numbers} -> an SVG of the shares, the most frequent statuses below.
function statusChart(mix, { weight = 0, pick } = {}) {
  const totals = mix.steps.map((_, k) =>
    Object.values(mix.counts).reduce((sum, counts) => sum + counts[k], 0),
  );
  const sum = (status) => mix.counts[status].reduce((a, b) => a + b, 0);
  const first = (status) => (status === "correct" ? 0 : 1);
  const order = Object.keys(mix.counts).sort((a, b) => first(a) - first(b) || sum(b) - sum(a));
  const shares = new Map(
    order.map((status) => [
      status,
      smoothed(
        mix.counts[status].map((n, k) => n / (totals[k] || 1)),
        weight,
      ),
    ]),
  );
  const chart = new Chart({
    x: extent(mix.steps),
    y: { low: 0, high: 1 },
    percent: true,
    pick,
    tip: (step) => statusTip(mix, order, totals, step),
  });
  let below = mix.steps.map(() => 0);
  for (const status of order) {
    const above = below.map((v, k) => v + shares.get(status)[k]);
    const point = (values, k) => `${chart.toX(mix.steps[k]).toFixed(1)},${chart.toY(values[k]).toFixed(1)}`;
    const up = mix.steps.map((_, k) => point(above, k));
    const down = mix.steps.map((_, k) => point(below, k)).reverse();
    chart.drawn.append(svg("path", { d: `M${[...up, ...down].join("L")}Z`, fill: statusColor(status) }));
    below = above;
  }
  return { node: chart.node, order };
}

function statusTip(mix, order, totals, step) {
  const k = mix.steps.indexOf(step);
  if (k < 0) return null;
  const there = order.filter((status) => mix.counts[status][k]);
  return [
    el("div", { class: "muted" }, `step ${step}, ${plural(totals[k], "sample")}`),
    ...there.map((status) =>
      el(
        "div",
        {},
        swatch(statusColor(status)),
        `${status} `,
        el("b", {}, percent(mix.counts[status][k] / totals[k])),
      ),
    ),
  ];
}
