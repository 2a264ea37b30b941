// A list of any length, of which only the rows in sight are in the document.

class VirtualList {
  // row(item) gives the element of one item; every row is `height` pixels high.
  constructor({ height, row, picked }) {
    Object.assign(this, { height, row, picked });
    this.items = [];
    this.selected = null;
    this.room = el("div", { class: "room" });
    this.node = el("div", { class: "list", tabindex: 0, role: "listbox" }, this.room);
    this.draw = beforeDrawing(() => this.drawNow());
    this.node.addEventListener("scroll", this.draw);
    this.node.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(this.draw).observe(this.node);
  }

  show(items, keepPlace = false) {
    this.items = items;
    this.room.style.height = `${items.length * this.height}px`;
    if (!keepPlace) this.node.scrollTop = 0;
    this.draw();
  }

  drawNow() {
    const above = 6; // rows out of sight, so that fast scrolling shows no gap
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.height) - above);
    const last = Math.min(
      this.items.length,
      first + Math.ceil(this.node.clientHeight / this.height) + 2 * above,
    );
    const rows = this.items.slice(first, last).map((item, k) => {
      const node = this.row(item);
      node.style.top = `${(first + k) * this.height}px`;
      node.classList.toggle("selected", item === this.selected);
      node.addEventListener("click", () => this.select(item));
      return node;
    });
    this.room.replaceChildren(...rows);
  }

  select(item, quietly = false) {
    this.selected = item;
    const top = this.items.indexOf(item) * this.height;
    const { scrollTop, clientHeight } = this.node;
    if (top >= 0 && (top < scrollTop || top + this.height > scrollTop + clientHeight)) {
      this.node.scrollTop = Math.max(0, top - clientHeight / 2);
    }
    this.draw();
    if (!quietly) this.picked(item);
  }

  // The item `by` places further, or the first one.
  move(by) {
    if (!this.items.length) return;
    const at = this.items.indexOf(this.selected);
    this.select(this.items[at < 0 ? 0 : Math.max(0, Math.min(this.items.length - 1, at + by))]);
  }

  pressed(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    this.move(by);
  }
}
