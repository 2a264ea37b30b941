// What differs between two texts: line by line (Myers, "An O(ND) difference algorithm", 1986), then inside
// lines.

// Pairs [i, j] of equal items, in order: a longest common subsequence. Null where more than `most` edits
// are needed.
function commonItems(a, b, most = 4000) {
  const reach = new Map([[1, 0]]); // diagonal -> the furthest x on it
  const history = [];
  for (let edits = 0; edits <= Math.min(a.length + b.length, most); edits++) {
    history.push(new Map(reach));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && reach.get(k - 1) < reach.get(k + 1));
      let x = down ? reach.get(k + 1) : reach.get(k - 1) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      reach.set(k, x);
      if (x >= a.length && x - k >= b.length) return walkBack(a, b, history);
    }
  }
  return null;
}

function walkBack(a, b, history) {
  const pairs = [];
  let x = a.length;
  let y = b.length;
  for (let edits = history.length - 1; edits >= 0; edits--) {
    const reach = history[edits];
    const k = x - y;
    const down = k === -edits || (k !== edits && reach.get(k - 1) < reach.get(k + 1));
    const before = down ? k + 1 : k - 1;
    const startX = edits ? reach.get(before) : 0;
    const startY = edits ? startX - before : 0;
    while (x > startX && y > startY && x > 0 && y > 0) pairs.push([--x, --y]);
    x = startX;
    y = startY;
  }
  return pairs.reverse();
}

// Rows {left, right} of line numbers (from 0) in a side-by-side view; null on the side where a line is
// missing.
function diffRows(left, right) {
  const rows = [];
  let i = 0;
  let j = 0;
  for (const [x, y] of [...(commonItems(left, right) ?? []), [left.length, right.length]]) {
    while (i < x || j < y) rows.push({ left: i < x ? i++ : null, right: j < y ? j++ : null, same: false });
    if (x < left.length && y < right.length) rows.push({ left: i++, right: j++, same: true });
  }
  return rows;
}

// Characters of two lines that differ: [ranges in the left one, ranges in the right one].
function changedInside(left, right) {
  const words = (line) => line.match(/\w+|\s+|[^\w\s]/g) ?? [];
  const [a, b] = [words(left), words(right)];
  const pairs = commonItems(a, b, 400) ?? [];
  return [
    rangesWithout(a, new Set(pairs.map(([x]) => x))),
    rangesWithout(b, new Set(pairs.map(([, y]) => y))),
  ];
}

function rangesWithout(words, common) {
  const ranges = [];
  let at = 0;
  words.forEach((word, k) => {
    if (!common.has(k)) ranges.push([at, at + word.length]);
    at += word.length;
  });
  return ranges;
}

// Two sources side by side. Long stretches of equal lines are folded.
function diffView(left, right) {
  const [a, b] = [left, right].map((text) => text.replace(/\n$/, ""));
  const lines = [a.split("\n"), b.split("\n")];
  const tokens = [pythonLines(a), pythonLines(b)];
  const body = el("tbody");
  const rows = diffRows(...lines);
  for (const [first, last] of foldedRanges(rows)) {
    const shown = rows.slice(first, last).map((row) => diffRow(row, lines, tokens));
    const equal = rows.slice(first, last).every((row) => row.same);
    body.append(...(equal && shown.length > FOLD ? [foldRow(shown)] : shown));
  }
  const widths = ["number", "", "number", ""].map((kind) => el("col", { class: kind }));
  return el("table", { class: "diff code", "data-searched": true }, el("colgroup", {}, ...widths), body);
}

const CONTEXT = 4; // equal lines that stay around a difference
const FOLD = 8; // fewer equal lines than these are not folded

// The rows, cut where a stretch of equal ones leaves the context of a difference: pairs [first, end).
function foldedRanges(rows) {
  const near = rows.map((_, k) =>
    rows.slice(Math.max(0, k - CONTEXT), k + CONTEXT + 1).some((row) => !row.same),
  );
  const cuts = rows.map((_, k) => k).filter((k) => k === 0 || near[k] !== near[k - 1]);
  return cuts.map((k, n) => [k, cuts[n + 1] ?? rows.length]);
}

function foldRow(hidden) {
  const button = el("button", {}, `⋯ ${hidden.length} equal lines`);
  const row = el("tr", { class: "folded" }, el("td", { colspan: 4 }, button));
  button.addEventListener("click", () => row.replaceWith(...hidden));
  return row;
}

function diffRow({ left: x, right: y, same }, lines, tokens) {
  const changed = !same && x !== null && y !== null ? changedInside(lines[0][x], lines[1][y]) : [[], []];
  const cells = [x, y].flatMap((number, side) => {
    if (number === null) return [el("td", { class: "number" }), el("td", { class: "none" })];
    const kind = same ? "" : ["removed", "added"][side];
    return [
      el("td", { class: "number" }, String(number + 1)),
      el("td", { class: kind }, ...lineNodes(tokens[side][number], changed[side])),
    ];
  });
  return el("tr", {}, ...cells);
}
