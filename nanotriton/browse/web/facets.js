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
  const filter = {
    task: null,
    from: null,
    to: null,
    low: null,
    high: null,
    query: "",
    order: "failures first",
  };
  for (const [column] of FACETS) filter[column] = new Set();
  return filter;
}

// The rows that pass, in order, and how often each value of each facet occurs among those that pass
// everything but that facet.
function filtered(samples, filter) {
  const { columns } = samples;
  const facets = FACETS.map(([name]) => ({ column: columns[name], chosen: filter[name], counts: new Map() }));
  const steps = new Map(); // step -> status -> samples, whatever steps are chosen
  const rows = [];
  for (const i of ordering(samples, filter.order)) {
    if (!passesBounds(columns, filter, i)) continue;
    let failed = null;
    let failures = 0;
    for (const facet of facets) {
      if (!facet.chosen.size || facet.chosen.has(facet.column[i])) continue;
      failed = facet;
      failures += 1;
    }
    const [step, number] = [columns.step[i], columns.count[i]];
    if (!failures) addTo(steps, step, columns.status[i], number);
    if (failures > 1 || step < (filter.from ?? -Infinity) || step > (filter.to ?? Infinity)) continue;
    if (!failures) rows.push(i);
    for (const { column, counts } of failed ? [failed] : facets) {
      counts.set(column[i], (counts.get(column[i]) ?? 0) + number);
    }
  }
  const counts = Object.fromEntries(FACETS.map(([name], k) => [name, facets[k].counts]));
  return { rows, counts, steps };
}

function passesBounds(columns, filter, i) {
  if (filter.task !== null && columns.task[i] !== filter.task) return false;
  if (filter.low === null && filter.high === null) return true;
  const reward = columns.reward[i];
  return reward !== null && reward >= (filter.low ?? -Infinity) && reward <= (filter.high ?? Infinity);
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

const MOST_BARS = 250;

// Steps as bars: {low, wide: steps of a bar, bars: [status -> samples]}. Many steps share a bar.
function binned(steps) {
  const known = [...steps.keys()];
  const low = Math.min(...known);
  const wide = Math.ceil((Math.max(...known) - low + 1) / MOST_BARS);
  const bars = [];
  for (const [step, statuses] of steps) {
    const bar = (bars[Math.floor((step - low) / wide)] ??= new Map());
    for (const [status, number] of statuses) bar.set(status, (bar.get(status) ?? 0) + number);
  }
  return { low, wide, bars: Array.from(bars, (bar) => bar ?? new Map()) };
}

function barTotal(bar) {
  return [...bar.values()].reduce((a, b) => a + b, 0);
}

// Bars of the samples of each step, by status. Dragging over them chooses steps, a click one of them.
function stepBars(samples, filter, steps, changed) {
  const box = el("div", { class: "steps", title: "drag to choose steps" });
  if (steps.size < 2) return box;
  const { low, wide, bars } = binned(steps);
  const picture = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none" });
  const most = Math.max(...bars.map(barTotal));
  bars.forEach((bar, k) => {
    const [from, to] = [low + k * wide, low + (k + 1) * wide - 1];
    const out = (filter.from !== null && to < filter.from) || (filter.to !== null && from > filter.to);
    picture.append(...barParts(samples, bar, k * (1000 / bars.length), 860 / bars.length, most, out));
  });
  const range = (a, b) => [low + Math.min(a, b) * wide, low + (Math.max(a, b) + 1) * wide - 1];
  chooseBars(picture, bars, range, (from, to) => {
    const again = filter.from === from && filter.to === to;
    Object.assign(filter, again ? { from: null, to: null } : { from, to });
    changed();
  });
  const ends = [`step ${low}`, String(Math.max(...steps.keys()))];
  box.append(picture, ...ends.map((text) => el("span", { class: "muted small" }, text)));
  return box;
}

// One bar, from the right statuses below to the rare ones above.
function barParts(samples, bar, x, width, most, faint) {
  const first = (status) => (samples.correct[status] ? 0 : 1);
  let y = 100;
  return [...bar]
    .sort((a, b) => first(a[0]) - first(b[0]) || a[0] - b[0])
    .map(([status, number]) => {
      const height = (96 * number) / most;
      y -= height;
      const fill = statusColor(samples.statuses[status]);
      return svg("rect", { x, y, width, height, fill, opacity: faint ? 0.25 : 1 });
    });
}

// Lets the user drag over bars. range(a, b) are the steps from one bar to another; chosen(from, to) is told
// them at the end.
function chooseBars(picture, bars, range, chosen) {
  let start = null; // the bar at which the button was pressed
  const barAt = (event) => {
    const { left, width } = picture.getBoundingClientRect();
    const share = (event.clientX - left) / width;
    return Math.max(0, Math.min(bars.length - 1, Math.floor(share * bars.length)));
  };
  picture.addEventListener("pointerdown", (event) => {
    start = barAt(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    const at = barAt(event);
    const [from, to] = range(start ?? at, at);
    const covered = bars.slice(Math.min(start ?? at, at), Math.max(start ?? at, at) + 1);
    const number = covered.reduce((sum, bar) => sum + barTotal(bar), 0);
    const text = `step ${from === to ? from : `${from} to ${to}`}: ${plural(number, "sample")}`;
    tooltip.show(event.clientX, event.clientY, text);
  });
  picture.addEventListener("pointerleave", () => tooltip.hide());
  picture.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const steps = range(start, barAt(event));
    start = null;
    chosen(...steps);
  });
}

// What is chosen, each with a cross that takes it back.
function chosenChips(samples, filter, changed) {
  const chips = [];
  const chip = (text, undo) =>
    chips.push(
      el(
        "button",
        { class: "chip", title: `${text}: take this back`, onclick: () => (undo(), changed()) },
        el("span", {}, text),
        " ×",
      ),
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

// The filter as the part of the address behind the #, and back. Names stand there, which survive a new
// page.
function filterWords(samples, filter) {
  const words = new URLSearchParams();
  for (const [column, , table] of FACETS)
    for (const value of filter[column]) words.append(column, samples[table][value]);
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
