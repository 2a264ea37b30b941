// One sample: what it was asked, what it wrote, what became of it, and how it differs from others of its
// group.

const VIEWS = ["completion", "diff", "row"];

class Detail {
  // go(i) shows another sample; matches() gives the pattern that is searched for, or null.
  constructor(page, { go, matches }) {
    Object.assign(this, { page, samples: page.samples, go, matches });
    this.view = "completion";
    this.node = el("div", { class: "detail" }, el("p", { class: "muted empty" }, "Choose a sample."));
  }

  clear() {
    this.shown = null;
    this.node.replaceChildren(el("p", { class: "muted empty" }, "No sample passes these filters."));
  }

  async show(i) {
    this.shown = i;
    const texts = await this.samples.texts(i);
    if (this.shown !== i) return; // the user went on meanwhile
    this.texts = texts;
    this.other = this.likelyOther(i);
    this.draw();
    this.node.scrollTop = 0;
  }

  // The sample to compare with: the best of the group, or if this is the best, the worst.
  likelyOther(i) {
    const others = this.samples.groupOf(i).filter((k) => k !== i);
    const { reward } = this.samples.columns;
    return (
      (others[0] !== undefined && (reward[others[0]] ?? 0) > (reward[i] ?? 0) ? others[0] : others.at(-1)) ??
      null
    );
  }

  async draw() {
    const i = this.shown;
    const body = await this.body();
    if (this.shown !== i) return;
    this.node.replaceChildren(this.head(i), this.group(i), this.tabs(), body);
    markMatches(this.node, this.matches());
  }

  head(i) {
    const { columns, splits, finishes, tasks } = this.samples;
    const { verdict } = this.texts;
    const run = this.page.runs[columns.run[i]];
    const facts = [
      ["reward", columns.reward[i] === null ? "none" : show(columns.reward[i])],
      ...Object.entries(this.texts.others.parts ?? {}).map(([name, value]) => [`of it ${name}`, show(value)]),
      ["advantage", show(columns.advantage[i])],
      ["step", show(columns.step[i])],
      ["split", splits[columns.split[i]]],
      ["tokens", show(columns.tokens[i])],
      ["ended by", finishes[columns.finish[i]]],
      ["written", `${plural(columns.count[i], "time")}`],
      ["speed-up", columns.speedup[i] === null ? null : `${show(columns.speedup[i])}×`],
      ["stage", verdict.stage],
      ["run", this.page.runs.length > 1 ? run.name : null],
    ].filter(([, value]) => value);
    return el(
      "div",
      { class: "head" },
      el("h2", {}, statusBadge(verdict.status), " ", tasks[columns.task[i]]),
      verdict.message && el("pre", { class: "message", "data-searched": true }, verdict.message),
      el(
        "dl",
        { class: "facts" },
        ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
      ),
    );
  }

  // The samples that this one was compared with, the best first.
  group(i) {
    const members = this.samples.groupOf(i);
    const { columns } = this.samples;
    const pills = members.map((k) => {
      const reward = columns.reward[k];
      const many = columns.count[k] > 1 ? ` ×${columns.count[k]}` : "";
      return el(
        "button",
        {
          class: k === i ? "pill this" : k === this.other && this.view === "diff" ? "pill other" : "pill",
          title: `${this.samples.status(k)}\n${this.samples.messages[columns.message[k]]}`,
          onclick: () => (this.view === "diff" && k !== i ? this.compare(k) : this.go(k)),
        },
        swatch(statusColor(this.samples.status(k))),
        `${reward === null ? this.samples.status(k) : show(reward)}${many}`,
      );
    });
    return el(
      "div",
      { class: "group" },
      el(
        "span",
        { class: "muted small" },
        `its group of ${members.reduce((sum, k) => sum + columns.count[k], 0)}`,
      ),
      ...pills,
    );
  }

  tabs() {
    const label = { completion: "task and completion", diff: "diff in its group", row: "all fields" };
    const buttons = VIEWS.map((view) =>
      el(
        "button",
        {
          class: view === this.view ? "tab chosen" : "tab",
          "data-view": view,
          disabled: view === "diff" && this.other === null,
          onclick: () => this.turn(view),
        },
        label[view],
      ),
    );
    return el(
      "div",
      { class: "views" },
      ...buttons,
      copyButton(() => candidateOf(this.texts.completion) ?? this.texts.completion),
    );
  }

  turn(view) {
    if (view === "diff" && this.other === null) return;
    this.view = view;
    this.draw();
  }

  compare(k) {
    this.other = k;
    this.draw();
  }

  body() {
    if (this.view === "diff" && this.other !== null) return this.diff();
    if (this.view === "row") return this.row();
    const task = el("div", { class: "half" }, el("h3", {}, "task"), codeBlock(this.texts.source ?? ""));
    const wrong = +(/\bline (\d+)/.exec(this.texts.verdict.message ?? "")?.[1] ?? 0);
    const parts = completionParts(this.texts.completion).map((part) => completionPart(part, wrong));
    const answered = candidateOf(this.texts.completion) !== null;
    const empty = el("p", { class: "muted" }, "The completion is empty.");
    return el(
      "div",
      { class: "halves" },
      el("div", { class: answered ? "half" : "half unanswered" }, ...(parts.length ? parts : [empty])),
      task,
    );
  }

  async diff() {
    const { completion, verdict } = await this.samples.texts(this.other);
    const sides = [this.texts.completion, completion].map((text) => candidateOf(text) ?? text);
    const { columns } = this.samples;
    const side = (name, status, k) =>
      el(
        "div",
        {},
        el("b", {}, name),
        " ",
        statusBadge(status),
        ` reward ${columns.reward[k] === null ? "none" : show(columns.reward[k])}`,
      );
    return el(
      "div",
      { class: "compared" },
      el(
        "div",
        { class: "sides" },
        side("this sample", this.texts.verdict.status, this.shown),
        side("the other", verdict.status, this.other),
      ),
      el("p", { class: "muted small" }, "Click another sample of the group above to compare with it."),
      sides[0] === sides[1] ? el("p", {}, "Both candidates are the same text.") : diffView(...sides),
    );
  }

  row() {
    const { columns } = this.samples;
    const i = this.shown;
    const plain = Object.fromEntries(
      ["step", "group", "tokens", "reward", "advantage", "speedup", "count"].map((key) => [
        key,
        columns[key][i],
      ]),
    );
    const all = {
      task: this.samples.tasks[columns.task[i]],
      split: this.samples.splits[columns.split[i]],
      ...plain,
    };
    const text = JSON.stringify({ ...all, ...this.texts.others, verdict: this.texts.verdict }, null, 2);
    return el(
      "div",
      {},
      codeBlock(text),
      el("h3", {}, "completion, as written"),
      codeBlock(this.texts.completion),
    );
  }
}

function completionPart(part, wrong) {
  if (part.kind === "text") return el("pre", { class: "prose", "data-searched": true }, part.text.trim());
  const name = part.kind === "candidate" ? "candidate" : "a block that was not judged";
  return el(
    "div",
    { class: part.kind },
    el("h3", {}, name),
    codeBlock(part.text, part.kind === "candidate" ? wrong : 0),
  );
}

function copyButton(text) {
  const button = el("button", { class: "quiet copy" }, "copy code");
  button.addEventListener("click", async () => {
    const done = await navigator.clipboard.writeText(text()).then(
      () => true,
      () => false,
    );
    button.textContent = done ? "copied" : "the browser forbids it";
    setTimeout(() => (button.textContent = "copy code"), 1500);
  });
  return button;
}
