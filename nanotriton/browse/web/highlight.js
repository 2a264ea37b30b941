// Python in colour, and the parts of a completion.

const KEYWORDS =
  "and as assert async await break class continue def del elif else except False finally for from global if " +
  "import in is lambda None nonlocal not or pass raise return True try while with yield";

// A string ends at its quotes; one in triple quotes that has none, at the end of the text.
const STRINGS = [
  /"""[\s\S]*?(?:"""|(?![\s\S]))/,
  /'''[\s\S]*?(?:'''|(?![\s\S]))/,
  /"(?:\\.|[^"\\\n])*"?/,
  /'(?:\\.|[^'\\\n])*'?/,
];

// In the order in which they are tried. The name of a group is the class of what it finds.
const PYTHON = new RegExp(
  [
    "(?<comment>#[^\\n]*)",
    `(?<string>(?:\\b[rbfuRBFU]{1,2})?(?:${STRINGS.map((part) => part.source).join("|")}))`,
    "(?<decorator>(?<=^[ \\t]*)@[\\w.]+)",
    "(?<number>\\b(?:0[xob][\\da-fA-F_]+|\\d[\\d_]*\\.?\\d*(?:[eE][-+]?\\d+)?)\\b)",
    "(?<defined>(?<=\\b(?:def|class)[ \\t]+)\\w+)",
    `(?<keyword>\\b(?:${KEYWORDS.replaceAll(" ", "|")})\\b)`,
    "(?<library>\\b(?:triton|tl|torch|nn|F)\\b(?=\\.))",
    "(?<called>\\b[A-Za-z_]\\w*(?=\\())",
  ].join("|"),
  "gm",
);

// Lines of [class, text] pairs; the texts of a line, joined, are the line.
function pythonLines(source) {
  const lines = [[]];
  const put = (kind, text) => {
    text.split("\n").forEach((part, k) => {
      if (k) lines.push([]);
      if (part) lines.at(-1).push([kind, part]);
    });
  };
  let end = 0;
  for (const match of source.matchAll(PYTHON)) {
    put("", source.slice(end, match.index));
    put(
      Object.keys(match.groups).find((name) => match.groups[name] !== undefined),
      match[0],
    );
    end = match.index + match[0].length;
  }
  put("", source.slice(end));
  return lines;
}

// One line, with the characters in `changed` (pairs of from and to) marked.
function lineNodes(tokens, changed = []) {
  const nodes = [];
  let at = 0;
  for (const [kind, text] of tokens) {
    const cuts = new Set([0, text.length]);
    for (const edge of changed.flat()) if (edge > at && edge < at + text.length) cuts.add(edge - at);
    const edges = [...cuts].sort((a, b) => a - b);
    for (let k = 0; k + 1 < edges.length; k++) {
      const from = at + edges[k];
      const marked = changed.some(([first, last]) => first <= from && from < last);
      const style = [kind && `py-${kind}`, marked && "changed"].filter(Boolean).join(" ");
      const part = text.slice(edges[k], edges[k + 1]);
      nodes.push(style ? el("span", { class: style }, part) : part);
    }
    at += text.length;
  }
  return nodes;
}

// A block of code with line numbers. `wrong` is the number of a line that a message names.
function codeBlock(source, wrong = 0) {
  const lines = pythonLines(source.replace(/\n$/, ""));
  const rows = lines.map((tokens, k) =>
    el("span", { class: k + 1 === wrong ? "line wrong" : "line" }, ...lineNodes(tokens)),
  );
  return el("pre", { class: "code", "data-searched": true }, el("code", {}, ...rows));
}

// A completion in parts for the eye: [{kind: "text", "code" or "candidate", text}], cut where lines open and
// close a block. Which of them is the candidate was decided in Python.
function completionParts(completion, candidate) {
  const parts = [];
  let fence = null; // the mark that opened the block
  let lines = [];
  const close = () => {
    const text = lines.join("\n");
    lines = [];
    if (!text.trim()) return;
    const isIt = candidate !== null && text.trim() === candidate.trim();
    parts.push({ kind: isIt ? "candidate" : fence ? "code" : "text", text });
  };
  for (const line of completion.split(/\r\n|\r|\n/)) {
    const mark = /^[ \t]*(`{3,}|~{3,})([^`]*)$/.exec(line);
    if (mark && !fence) {
      close();
      fence = mark[1];
    } else if (mark && mark[1].startsWith(fence) && !mark[2].trim()) {
      close();
      fence = null;
    } else {
      lines.push(line);
    }
  }
  close();
  const found = parts.some((part) => part.kind === "candidate");
  if (candidate !== null && !found) parts.push({ kind: "candidate", text: candidate });
  return parts;
}
