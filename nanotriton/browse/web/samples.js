// The second tab: facets at the left, the list in the middle, one sample at the right.

class SamplesTab {
  constructor(page) {
    this.page = page;
    this.samples = page.samples;
    this.samples.runs = page.runs.map((run) => run.name); // the names of the facet "run"
    this.filter = emptyFilter();
    const train = this.samples.splits.indexOf("train");
    if (train >= 0) this.filter.split.add(train);
    this.asked = 0; // number of the newest search; older ones stop
    this.list = new VirtualList({ height: 54, row: (i) => this.row(i), picked: (i) => this.pick(i) });
    this.detail = new Detail(page, { go: (i) => this.list.select(i), matches: () => this.pattern });
    this.build();
  }

  build() {
    this.changed = () => this.refresh();
    this.search = el("input", {
      type: "search",
      class: "search",
      placeholder: "search code, tasks, messages, or /regular expression/",
    });
    const later = settled(this.changed, 150);
    this.search.addEventListener("input", () => {
      this.filter.query = this.search.value;
      later();
    });
    this.order = el(
      "select",
      { title: "order" },
      ...Object.keys(ORDERS).map((name) => el("option", {}, name)),
    );
    this.order.addEventListener("change", () => {
      this.filter.order = this.order.value;
      this.refresh();
    });
    this.bounds = ["low", "high"].map((key) => {
      const input = el("input", {
        type: "number",
        step: "any",
        class: "bound",
        placeholder: key === "low" ? "from" : "to",
        title: `reward ${key === "low" ? "from" : "to"}`,
      });
      input.addEventListener("input", () => {
        this.filter[key] = input.value === "" ? null : +input.value;
        later();
      });
      return input;
    });
    this.facets = el("aside", { class: "facets" });
    this.steps = el("div");
    this.chips = el("div", { class: "chips" });
    this.found = el("div", { class: "found muted small" });
    this.progress = el("progress", { max: 1, hidden: true });
    const bar = el(
      "div",
      { class: "bar" },
      this.search,
      this.order,
      el("label", { class: "muted" }, "reward ", ...this.bounds),
    );
    const middle = el("div", { class: "middle" }, this.found, this.list.node);
    this.node = el(
      "div",
      { class: "samples" },
      el("div", { class: "top" }, bar, this.progress, this.steps, this.chips, this.skipped()),
      el("div", { class: "columns" }, this.facets, middle, this.detail.node),
    );
  }

  skipped() {
    const said = this.samples.skipped.map(
      ({ run, every }) => `${this.page.runs[run].name}: only every ${every}th step's samples are here`,
    );
    return said.length
      ? el("p", { class: "note" }, `${said.join("; ")}. --rows of nanotriton.browse sets how many.`)
      : null;
  }

  row(i) {
    const { columns, tasks, messages } = this.samples;
    const status = this.samples.status(i);
    const reward = columns.reward[i];
    const many = columns.count[i] > 1 ? ` ×${columns.count[i]}` : "";
    return el(
      "div",
      { class: "row", role: "option", style: { borderLeftColor: statusColor(status) } },
      el(
        "div",
        {},
        el("span", { class: "status" }, status),
        el("b", {}, tasks[columns.task[i]]),
        el("span", { class: "end" }, reward === null ? "" : show(reward)),
      ),
      el(
        "div",
        { class: "muted small" },
        el("span", { class: "what" }, messages[columns.message[i]]),
        el("span", { class: "end" }, `step ${columns.step[i]}${many}`),
      ),
    );
  }

  pick(i) {
    remember("samples", this.words(i));
    this.detail.show(i);
  }

  words(i) {
    const words = filterWords(this.samples, this.filter);
    if (i !== null) words.set("sample", i);
    return words;
  }

  // Show what passes the filter. `chosen`: the sample to open; without one the first stays or comes.
  async refresh(chosen = null) {
    const mine = ++this.asked;
    const isCurrent = () => mine === this.asked;
    const { rows, counts, steps } = filtered(this.samples, this.filter);
    this.facets.replaceChildren(...facetColumn(this.samples, this.filter, counts, this.changed));
    this.steps.replaceChildren(stepBars(this.samples, this.filter, steps, this.changed));
    this.chips.replaceChildren(...chosenChips(this.samples, this.filter, this.changed));
    this.order.value = this.filter.order;
    if (this.search.value !== this.filter.query) this.search.value = this.filter.query;
    this.pattern = this.filter.query ? queryPattern(this.filter.query) : null;
    this.search.classList.toggle("wrong", this.filter.query !== "" && this.pattern === null);
    this.progress.hidden = true;
    if (!this.pattern) {
      this.showRows(rows, chosen);
      return;
    }
    let soon = true; // the first hits are shown at once, more of them as they come
    await searchTexts(this.samples, rows, this.pattern, isCurrent, (hits, share) => {
      this.progress.hidden = share === 1;
      this.progress.value = share;
      if (share < 1 && !(hits.size && soon)) return;
      const found = rows.filter((i) => hits.has(i));
      this.showRows(found, soon ? chosen : this.list.selected, !soon);
      soon = false;
    });
  }

  showRows(rows, chosen, keepPlace = false) {
    this.list.show(rows, keepPlace);
    this.tell(rows);
    const stay = chosen ?? this.list.selected;
    if (!rows.length) this.detail.clear();
    else if (stay !== null && rows.includes(stay))
      this.list.select(stay, this.detail.shown === stay && !this.pattern);
    else this.list.select(rows[0]);
  }

  tell(rows) {
    const { columns } = this.samples;
    let [all, correct, scored, total] = [0, 0, 0, 0];
    for (const i of rows) {
      all += columns.count[i];
      if (this.samples.correct[columns.status[i]]) correct += columns.count[i];
      if (columns.reward[i] === null) continue;
      scored += columns.count[i];
      total += columns.count[i] * columns.reward[i];
    }
    const reward = scored ? `, mean reward ${show(total / scored)}` : "";
    const distinct = rows.length === all ? "" : `, ${rows.length.toLocaleString("en-US")} of them distinct`;
    this.found.textContent = all
      ? `${plural(all, "sample")}${distinct}: ${percent(correct / all)} correct${reward}`
      : "no sample";
  }

  pressed(key) {
    if (key === "j") this.list.move(1);
    else if (key === "k") this.list.move(-1);
    else if (key === "d") this.detail.turn(this.detail.view === "diff" ? "completion" : "diff");
    else if (key === "/") this.search.focus();
    else return false;
    return true;
  }
}
