// Renders Markdown to elements. Text of others becomes text nodes and never HTML. Linear in the length of the text, and
// only the end of a growing text is rendered again: a block that did not change keeps its elements and the selection.
import { h } from "../dom.js";
import { CodeView } from "./code.js";
import { Prose, inline } from "./inline.js";
import { cells, split } from "./blocks.js";
import { mathsView } from "./maths.js";

/** Shows a growing text in an element. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.text = "";
    this.lines = [""];
    this.blocks = new Blocks(element, 0);
  }

  set(text) {
    if (text === this.text) return;
    if (text.startsWith(this.text)) {
      const [first, ...more] = text.slice(this.text.length).split("\n");
      this.lines[this.lines.length - 1] += first;
      for (const line of more) this.lines.push(line);
    } else {
      this.lines = text.split("\n");
      this.blocks.forget();
    }
    this.text = text;
    this.blocks.grow(this.lines);
  }
}

// A line that is not complete may still change what the block before it is, and no earlier one.
const OPEN_BLOCKS = 2;

/** The blocks in one element: of a text, a quote or an item of a list. */
class Blocks {
  constructor(element, depth) {
    this.element = element;
    this.depth = depth;
    this.views = []; // { kind, label, lines, at, element, update }
  }

  forget() {
    this.views = [];
    this.element.replaceChildren();
  }

  /** Shows lines of which all but the end are those of the last call. */
  grow(lines) {
    const kept = Math.max(this.views.length - OPEN_BLOCKS, 0);
    this.show(split(lines, this.views[kept]?.at ?? 0, this.depth), kept);
  }

  /** Shows any lines. */
  set(lines) {
    this.show(split(lines, 0, this.depth), 0);
  }

  show(blocks, kept) {
    blocks.forEach((block, n) => {
      const old = this.views[kept + n];
      const isSame = old?.kind === block.kind && old.label === block.label;
      if (isSame && sameLines(old.lines, block.lines)) return (old.at = block.at);
      if (isSame && old.update) {
        old.update(block);
        Object.assign(old, { lines: block.lines, at: block.at });
        return;
      }
      const view = { ...block, ...build(block, this.depth) };
      if (old) old.element.replaceWith(view.element);
      else this.element.append(view.element);
      this.views[kept + n] = view;
    });
    for (const { element } of this.views.splice(kept + blocks.length)) element.remove();
  }
}

const sameLines = (one, other) => one.length === other.length && one.every((line, n) => line === other[n]);

/** Returns { element, update }; a block without `update` is built again when it changes. */
function build(block, depth) {
  switch (block.kind) {
    case "code": {
      const view = new CodeView(block.label);
      view.set(block.code);
      return { element: view.element, update: ({ code }) => view.set(code) };
    }
    case "heading":
      return { element: inline(block.text, h(`h${Math.min(block.level + 2, 6)}`)) };
    case "rule":
      return { element: h("hr") };
    case "maths":
      return { element: mathsView(block.text, true) };
    case "quote": {
      const blocks = new Blocks(h("blockquote"), depth + 1);
      blocks.set(block.inside);
      return { element: blocks.element, update: ({ inside }) => blocks.set(inside) };
    }
    case "table":
      return tableView(block);
    case "list":
      return listView(block, depth);
    default: {
      const prose = new Prose(h("p"));
      prose.set(block.text);
      return { element: prose.element, update: ({ text }) => prose.set(text) };
    }
  }
}

const ROWS = 100; // of a body; a longer table has several, and columns by the length of their texts
const MAX_WIDTH = 40; // characters

function tableView({ head, aligns, rows: first }) {
  const line = (tag, texts) =>
    h("tr", {}, ...head.map((_, n) => inline(texts[n] ?? "", h(tag, { class: aligns[n], ...(tag === "th" && { scope: "col" }) }))));
  const table = h("table", {}, h("thead", {}, line("th", head)), h("tbody"));
  const bodies = [table.lastChild];
  const rows = []; // { text, element }
  const update = ({ rows: given }) => {
    given.forEach((text, n) => {
      if (rows[n]?.text === text) return;
      const element = line("td", cells(text));
      const body = (bodies[Math.floor(n / ROWS)] ??= table.appendChild(h("tbody")));
      if (rows[n]) rows[n].element.replaceWith(element);
      else body.append(element);
      rows[n] = { text, element };
    });
    for (const { element } of rows.splice(given.length)) element.remove();
    for (const body of bodies.splice(Math.max(Math.ceil(rows.length / ROWS), 1))) body.remove();
    const isLong = bodies.length > 1;
    if (isLong === table.classList.contains("long")) return;
    table.classList.toggle("long", isLong);
    const texts = [head, ...given.slice(0, ROWS).map(cells)];
    const widths = head.map((_, n) => Math.min(Math.max(...texts.map((row) => row[n]?.length ?? 0), 3), MAX_WIDTH));
    table.style.setProperty("--columns", widths.map((width) => `minmax(4ch, calc(${width}ch + 24px))`).join(" "));
  };
  update({ rows: first });
  const element = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, table);
  return { element, update };
}

function listView(block, depth) {
  const element = h(block.ordered ? "ol" : "ul", { start: block.start });
  const items = [];
  const update = ({ items: given }) => {
    const hasTasks = given.some(({ task }) => task !== null);
    if (hasTasks) element.className = "tasks";
    else element.removeAttribute("class");
    given.forEach((item, n) => {
      if (items[n] && sameLines(items[n].lines, item.lines) && items[n].task === item.task) return;
      if (items[n]?.task !== item.task) {
        const { task } = item;
        const li = h("li");
        const body = task === null ? li : h("div", { class: "item" });
        if (body !== li) li.append(h("input", { type: "checkbox", disabled: true, checked: task, "aria-label": task ? "done" : "to do" }), body);
        const view = { li, task, blocks: new Blocks(body, depth + 1) };
        if (items[n]) items[n].li.replaceWith(li);
        else element.append(li);
        items[n] = view;
      }
      items[n].blocks.set(item.lines);
      items[n].lines = item.lines;
    });
    for (const { li } of items.splice(given.length)) li.remove();
    const digits = `${block.start + given.length - 1}`.length;
    element.style.paddingLeft = block.ordered && digits > 2 ? `${digits + 1}ch` : "";
  };
  update(block);
  return { element, update };
}
