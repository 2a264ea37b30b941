// Searching the texts of samples: chunk by chunk, so that the page goes on answering.

// A query is text to be found in either case, or /a regular expression/. Null: it is not a valid one.
function queryPattern(query) {
  const expression = /^\/(.+)\/$/s.exec(query);
  try {
    return new RegExp(expression ? expression[1] : query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "im");
  } catch {
    return null;
  }
}

// Calls found(rows, share done) after each chunk, with the rows found so far that hold the pattern in the
// completion, the task's source or name, or the verdict's message. Stops when isCurrent() says that nobody
// waits any more.
async function searchTexts(samples, rows, pattern, isCurrent, found) {
  const byChunk = new Map();
  for (const i of rows) {
    const number = samples.chunkOf(i);
    if (!byChunk.has(number)) byChunk.set(number, []);
    byChunk.get(number).push(i);
  }
  const hits = new Set();
  let done = 0;
  for (const [number, members] of byChunk) {
    const chunk = await samples.chunk(number);
    if (!isCurrent()) return;
    for (const i of members) {
      const { completion, verdict, source } = samples.textsIn(chunk, number, i);
      const task = samples.tasks[samples.columns.task[i]];
      if ([completion, verdict.message ?? "", task, source].some((text) => pattern.test(text))) hits.add(i);
    }
    done += 1;
    found(hits, done / byChunk.size);
    await breathe();
    if (!isCurrent()) return;
  }
  if (!byChunk.size) found(hits, 1);
}

// Marks every match inside an element, where the browser can (the CSS custom highlight API).
function markMatches(element, pattern) {
  if (!window.Highlight) return;
  CSS.highlights.delete("match");
  if (!pattern) return;
  const ranges = [];
  const each = new RegExp(pattern.source, "gim");
  for (const block of element.querySelectorAll("[data-searched]")) {
    const nodes = [];
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    let text = "";
    while (walker.nextNode()) {
      nodes.push([text.length, walker.currentNode]);
      text += walker.currentNode.data;
    }
    for (const match of text.matchAll(each)) {
      if (!match[0] || ranges.length > 2000) break;
      const range = document.createRange();
      range.setStart(...placeIn(nodes, match.index));
      range.setEnd(...placeIn(nodes, match.index + match[0].length));
      ranges.push(range);
    }
  }
  CSS.highlights.set("match", new Highlight(...ranges));
}

function placeIn(nodes, offset) {
  const [start, node] = nodes.findLast(([first]) => first <= offset);
  return [node, Math.min(offset - start, node.data.length)];
}
