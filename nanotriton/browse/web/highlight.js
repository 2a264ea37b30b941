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

// The parts of a completion: [{kind: "text", "code" or "candidate", text}]. The candidate is the last
// Python block after the reasoning that defines ModelNew; nanotriton/rules/extract.py has the rule, a test
// compares.
function completionParts(completion) {
  const parts = [];
  let fence = null;
  let lines = [];
  const close = (kind) => {
    if (lines.length) parts.push({ kind, text: lines.join("\n"), language: fence?.language });
    lines = [];
  };
  const closed = completion.indexOf("</think>");
  const unanswered = closed < 0 && completion.trimStart().startsWith("<think>");
  const answerAt = unanswered ? Infinity : closed < 0 ? 0 : closed + "</think>".length;
  const reasoning = completion.slice(0, Math.min(answerAt, completion.length));
  if (reasoning) parts.push({ kind: "text", text: reasoning });
  const answer = completion.slice(reasoning.length).replace(/^\r?\n/, "");
  for (const line of answer.split(/\r\n|\r|\n/)) {
    const mark = /^([ \t]*)(`{3,}|~{3,})[ \t]*([^`\r\n]*)$/.exec(line);
    if (!fence && mark) {
      close("text");
      const language = (mark[3].trim().split(/\s+/)[0] ?? "").toLowerCase();
      fence = { indent: mark[1].length, mark: mark[2], language };
    } else if (fence && mark && closes(fence, mark)) {
      close("code");
      fence = null;
    } else {
      lines.push(fence ? line.slice(Math.min(fence.indent, line.length - line.trimStart().length)) : line);
    }
  }
  close(fence ? "code" : "text");
  const candidate = parts.findLast(
    (part) => part.kind === "code" && isPython(part) && definesEntry(part.text),
  );
  if (candidate) candidate.kind = "candidate";
  return parts.filter((part) => part.text.trim());
}

function closes(fence, mark) {
  const same = mark[2][0] === fence.mark[0] && mark[2].length >= fence.mark.length;
  return same && !mark[3].trim() && mark[1].length <= fence.indent + 3;
}

function isPython(part) {
  return ["", "python", "py", "python3"].includes(part.language);
}

function definesEntry(text) {
  return /^(class|def)[ \t]+ModelNew\b|^ModelNew[ \t]*[:=]/m.test(text);
}

function candidateOf(completion) {
  return completionParts(completion).find((part) => part.kind === "candidate")?.text ?? null;
}
