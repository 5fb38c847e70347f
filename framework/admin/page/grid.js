// A table of any length, of which only the rows in sight are elements: sorted, filtered, walked by keys.
import { h, marked } from "./parts.js";

const ROW = 34;
const AHEAD = 12;

export class Grid {
  constructor(place, options) {
    this.options = options;
    this.columns = options.columns;
    [this.by, this.down] = options.sort;
    this.rows = [];
    this.shown = [];
    this.words = [];
    this.selected = "";
    this.head = h("thead", {}, h("tr", {}, ...this.columns.map((column) => this.headOf(column))));
    this.body = h("tbody");
    this.none = h("p", { class: "none", hidden: true }, options.empty);
    this.box = h("div", { class: "grid", tabindex: 0, onscroll: () => this.paint() }, h("table", { role: "grid" }, this.head, this.body), this.none);
    place.append(this.box);
    addEventListener("resize", () => this.paint());
  }

  headOf(column) {
    const name = column.sort || column.head;
    const click = () => {
      this.down = this.by === name ? !this.down : Boolean(column.right);
      this.by = name;
      this.arrange();
    };
    const made = h("th", { class: `${column.right ? "right" : ""} ${hides(column)}`, scope: "col" }, h("button", { onclick: click }, column.head));
    made.column = name;
    return made;
  }

  show(rows) {
    this.rows = rows;
    if (this.box.offsetParent && !marked(this.box)) this.arrange();
  }

  refresh() {
    this.arrange();
  }

  filter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.box.scrollTop = 0;
    this.arrange();
  }

  arrange() {
    for (const one of this.head.querySelectorAll("th")) {
      if (one.column === this.by) one.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else one.removeAttribute("aria-sort");
    }
    const { find, key } = this.options;
    const fits = (row) => { const text = find(row).toLowerCase(); return this.words.every((word) => text.includes(word)); };
    const column = this.columns.find((one) => (one.sort || one.head) === this.by);
    const found = (this.words.length ? this.rows.filter(fits) : this.rows).map((row) => [column.value(row), key(row), row]);
    const sign = this.down ? -1 : 1;
    found.sort(([a, nameA], [b, nameB]) => {
      if ((a === null || a === undefined) !== (b === null || b === undefined)) return a === null || a === undefined ? 1 : -1;
      return (a < b ? -1 : a > b ? 1 : 0) * sign || (nameA < nameB ? -1 : 1);
    });
    this.shown = found.map(([, , row]) => row);
    this.none.hidden = this.shown.length > 0;
    this.paint();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - AHEAD);
    const last = Math.min(this.shown.length, Math.ceil((this.box.scrollTop + innerHeight) / ROW) + AHEAD);
    this.body.replaceChildren(gap(first), ...this.shown.slice(first, last).map((row) => this.row(row)), gap(this.shown.length - last));
    this.box.setAttribute("aria-rowcount", this.shown.length);
  }

  row(row) {
    const key = this.options.key(row);
    const open = this.options.open;
    const click = () => { if (marked(this.box)) return; this.selected = key; this.paint(); open?.(row); };
    const cells = this.columns.map((column) => {
      const made = column.cell(row);
      const kinds = `${column.class || ""} ${column.right ? "right" : ""}`;
      return made instanceof Element ? h("td", { class: kinds }, made) : h("td", { class: `${kinds} ${made.class || ""}`, title: made.title }, String(made.text));
    });
    return h("tr", { class: open ? "row" : "", "aria-selected": key === this.selected ? "true" : "false", onclick: open ? click : () => {} }, ...cells);
  }

  focus() {
    this.box.focus({ preventScroll: true });
  }

  // Whether the key meant something.
  key(name) {
    const at = this.shown.findIndex((row) => this.options.key(row) === this.selected);
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 2);
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -this.shown.length, End: this.shown.length }[name];
    if (name === "Enter" && at >= 0 && this.options.open && !document.activeElement.matches("button")) {
      this.options.open(this.shown[at]);
      return true;
    }
    if (step === undefined || !this.shown.length) return false;
    const to = Math.min(this.shown.length - 1, Math.max(0, at < 0 && Math.abs(step) === 1 ? 0 : at + step));
    this.selected = this.options.key(this.shown[to]);
    const top = to * ROW, room = this.box.clientHeight - 2 * ROW;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top > this.box.scrollTop + room) this.box.scrollTop = top - room;
    this.paint();
    return true;
  }
}

function hides(column) {
  return (column.class || "").split(" ").filter((one) => one === "wide" || one === "middle").join(" ");
}

function gap(rows) {
  const cell = h("td", { colspan: 99 });
  cell.style.height = `${Math.max(0, rows) * ROW}px`;
  const made = h("tr", { class: "gap", "aria-hidden": "true" }, cell);
  made.hidden = rows <= 0;
  return made;
}
