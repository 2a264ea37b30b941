// What is shown of the samples: the filter, and how many samples each of its values would leave.

// Columns whose values can be chosen: the column, the heading, the table with its values' names.
const FACETS = [
  ["status", "status", "statuses"],
  ["reason", "reason", "reasons"],
  ["split", "split", "splits"],
  ["run", "run", "runs"],
  ["finish", "ended by", "finishes"],
];

function emptyFilter() {
  const filter = { task: null, from: null, to: null, low: null, high: null, query: "", order: "failures first" };
  for (const [column] of FACETS) filter[column] = new Set();
  return filter;
}

// The rows that pass, and how often each value of each facet occurs among those that pass everything but that facet.
function filtered(samples, filter) {
  const { columns, size } = samples;
  const counts = Object.fromEntries(FACETS.map(([column]) => [column, new Map()]));
  const steps = new Map(); // step -> status -> samples, whatever steps are chosen
  const rows = [];
  for (let i = 0; i < size; i++) {
    if (filter.task !== null && columns.task[i] !== filter.task) continue;
    const reward = columns.reward[i];
    if (filter.low !== null && !(reward !== null && reward >= filter.low)) continue;
    if (filter.high !== null && !(reward !== null && reward <= filter.high)) continue;
    const step = columns.step[i];
    const early = (filter.from !== null && step < filter.from) || (filter.to !== null && step > filter.to);
    const failed = FACETS.filter(([column]) => filter[column].size && !filter[column].has(columns[column][i]));
    if (!failed.length) addTo(steps, step, columns.status[i], columns.count[i]);
    if (early || failed.length > 1) continue;
    if (!failed.length) rows.push(i);
    for (const [column] of failed.length ? failed : FACETS) {
      const value = columns[column][i];
      counts[column].set(value, (counts[column].get(value) ?? 0) + columns.count[i]);
    }
  }
  return { rows, counts, steps };
}

function addTo(steps, step, status, number) {
  if (!steps.has(step)) steps.set(step, new Map());
  const at = steps.get(step);
  at.set(status, (at.get(status) ?? 0) + number);
}

// The column of facets. changed() is called when the user chose something.
function facetColumn(samples, filter, counts, changed) {
  return FACETS.flatMap(([column, heading, table]) => {
    const values = [...new Set([...counts[column].keys(), ...filter[column]])].filter(
      (value) => column !== "reason" || samples.reasons[value] !== "correct",
    );
    if (values.length < (column === "reason" ? 1 : 2) && !filter[column].size) return [];
    values.sort((a, b) => (counts[column].get(b) ?? 0) - (counts[column].get(a) ?? 0));
    const most = counts[column].get(values[0]) || 1;
    const few = column === "reason" ? 12 : 30;
    const items = values.slice(0, few).map((value) => {
      const number = counts[column].get(value) ?? 0;
      const name = samples[table][value] || "(none)";
      const chosen = filter[column].has(value);
      return el(
        "button",
        {
          class: chosen ? "facet chosen" : "facet",
          "aria-pressed": String(chosen),
          title: name,
          "data-column": column,
          onclick: () => {
            if (!filter[column].delete(value)) filter[column].add(value);
            changed();
          },
        },
        el("i", { class: "bar", style: { width: `${(100 * number) / most}%` } }),
        ["status", "reason"].includes(column) && swatch(statusColor(name.split(":")[0])),
        el("span", { class: "name" }, column === "reason" ? name.slice(name.indexOf(":") + 1).trim() : name),
        el("span", { class: "count" }, number.toLocaleString("en-US")),
      );
    });
    return [el("section", { "data-facet": column }, el("h3", {}, heading), ...items)];
  });
}

// Bars of the samples of each step, by status. Dragging over them chooses steps, a click without moving one step.
function stepBars(samples, filter, steps, changed) {
  const box = el("div", { class: "steps", title: "drag to choose steps" });
  const known = [...steps.keys()].sort((a, b) => a - b);
  if (known.length < 2) return box;
  const [low, high] = [known[0], known.at(-1)];
  const totals = known.map((step) => [...steps.get(step).values()].reduce((a, b) => a + b, 0));
  const most = Math.max(...totals);
  const wide = 1000 / (high - low + 1);
  const picture = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none" });
  const first = (status) => (samples.correct[status] ? 0 : 1);
  known.forEach((step) => {
    let y = 100;
    for (const [status, number] of [...steps.get(step)].sort((a, b) => first(a[0]) - first(b[0]) || a[0] - b[0])) {
      const height = (96 * number) / most;
      y -= height;
      const color = statusColor(samples.statuses[status]);
      const out = (filter.from !== null && step < filter.from) || (filter.to !== null && step > filter.to);
      const x = (step - low) * wide;
      picture.append(svg("rect", { x, y, width: wide * 0.86, height, fill: color, opacity: out ? 0.25 : 1 }));
    }
  });
  const stepAt = (event) => {
    const bounds = picture.getBoundingClientRect();
    const share = Math.max(0, Math.min(0.9999, (event.clientX - bounds.left) / bounds.width));
    return low + Math.floor(share * (high - low + 1));
  };
  let start = null;
  picture.addEventListener("pointerdown", (event) => {
    start = stepAt(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    const step = stepAt(event);
    const from = start === null ? step : Math.min(start, step);
    const to = start === null ? step : Math.max(start, step);
    const number = known.reduce((sum, s, k) => sum + (s >= from && s <= to ? totals[k] : 0), 0);
    tooltip.show(event.clientX, event.clientY, `step ${from === to ? from : `${from} to ${to}`}: ${plural(number, "sample")}`);
  });
  picture.addEventListener("pointerleave", () => tooltip.hide());
  picture.addEventListener("pointerup", (event) => {
    const step = stepAt(event);
    const [from, to] = [Math.min(start, step), Math.max(start, step)];
    const again = filter.from === from && filter.to === to;
    Object.assign(filter, again ? { from: null, to: null } : { from, to });
    start = null;
    changed();
  });
  box.append(picture, el("span", { class: "muted small" }, `step ${low}`), el("span", { class: "muted small" }, String(high)));
  return box;
}

// What is chosen, each with a cross that takes it back.
function chosenChips(samples, filter, changed) {
  const chips = [];
  const chip = (text, undo) =>
    chips.push(
      el("button", { class: "chip", title: `${text}: take this back`, onclick: () => (undo(), changed()) }, el("span", {}, text), " ×"),
    );
  for (const [column, heading, table] of FACETS) {
    for (const value of filter[column]) {
      chip(`${heading}: ${samples[table][value] || "(none)"}`, () => filter[column].delete(value));
    }
  }
  if (filter.task !== null) chip(`task: ${samples.tasks[filter.task]}`, () => (filter.task = null));
  if (filter.from !== null || filter.to !== null) {
    const range = `steps ${filter.from ?? "…"} to ${filter.to ?? "…"}`;
    chip(filter.from === filter.to ? `step ${filter.from}` : range, () => {
      filter.from = filter.to = null;
    });
  }
  return chips;
}

// The filter as the part of the address behind the #, and back. Names stand there, which survive a new page.
function filterWords(samples, filter) {
  const words = new URLSearchParams();
  for (const [column, , table] of FACETS) for (const value of filter[column]) words.append(column, samples[table][value]);
  if (filter.task !== null) words.set("task", samples.tasks[filter.task]);
  for (const key of ["from", "to", "low", "high"]) if (filter[key] !== null) words.set(key, filter[key]);
  if (filter.query) words.set("query", filter.query);
  if (filter.order !== "failures first") words.set("order", filter.order);
  return words;
}

function filterFrom(samples, words) {
  const filter = emptyFilter();
  for (const [column, , table] of FACETS) {
    for (const name of words.getAll(column)) {
      const value = samples[table].indexOf(name);
      if (value >= 0) filter[column].add(value);
    }
  }
  if (words.has("task")) filter.task = Math.max(0, samples.tasks.indexOf(words.get("task")));
  for (const key of ["from", "to", "low", "high"]) if (words.has(key)) filter[key] = +words.get(key);
  filter.query = words.get("query") ?? "";
  if (words.get("order") in ORDERS) filter.order = words.get("order");
  return filter;
}
