// What every other file uses: making elements, writing numbers, unpacking text, letting the browser
// breathe.

// el("button", {class: "quiet", onclick: f}, "text", anotherElement). Strings become text, never HTML.
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(
    ...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

// A coloured square before a name.
function swatch(color) {
  return el("i", { class: "swatch", style: { background: color } });
}

function show(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return typeof value === "object" ? JSON.stringify(value) : String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return size >= 100 ? value.toFixed(1) : value.toFixed(3);
}

function percent(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%` : "–";
}

function plural(number, noun) {
  return `${number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;
}

// Text that nanotriton/browse/samples.py packed: zlib, then base64.
async function unpack(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

// The browser draws and answers the user before the next line runs.
function breathe() {
  return new Promise((resolve) => setTimeout(resolve, 0));
}

// f, but only when nobody has called for `milliseconds`.
function settled(f, milliseconds) {
  let timer = 0;
  return (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => f(...words), milliseconds);
  };
}

// f, once before the browser draws next, however often it is called until then.
function beforeDrawing(f) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      f();
    });
  };
}

function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN;
}

const tooltip = {
  show(x, y, ...children) {
    const box = document.getElementById("tooltip");
    box.replaceChildren(...children);
    box.hidden = false;
    const right = x + 16 + box.offsetWidth > innerWidth;
    box.style.left = `${Math.max(4, right ? x - 16 - box.offsetWidth : x + 16)}px`;
    box.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - box.offsetHeight - 8))}px`;
  },
  hide() {
    document.getElementById("tooltip").hidden = true;
  },
};
