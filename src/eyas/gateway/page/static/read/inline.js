// Text inside a block: code, emphasis, links, maths. One pass: each character is read once, and what is open is bounded.
import { h } from "../dom.js";
import { mathsView } from "./maths.js";

const MAX_OPEN = 16; // marks that wait for their end; an older one becomes text, which also bounds how deep elements nest
const MAX_RUN = 3; // `****` and longer are no emphasis
const MAX_ADDRESS = 2048;
const MAX_TITLE = 300;
const MAX_FORMULA = 2000;
const SPECIAL = /[\\`*_~[\]!<$h\n]/g;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ADDRESS = /https?:\/\/[^\s<>"`]{1,2048}/y;
const ANGLED = /<(https?:\/\/[^\s<>]{1,2048}|mailto:[^\s<>]{1,320}|br\s?\/?)>/iy;
const IS_SAFE = /^(https?:\/\/|mailto:)/i;

/** Puts a text into an element, and returns the element. */
export const inline = (text, element) => fill(element, new Inline(text).read());

/** Appends nodes and texts one by one: there may be more than a call takes arguments. Texts side by side become one. */
function fill(element, nodes) {
  let text = "";
  for (const node of nodes) {
    if (typeof node === "string") text += node;
    else {
      if (text) element.append(text);
      text = "";
      element.append(node);
    }
  }
  if (text) element.append(text);
  return element;
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.out = []; // nodes and texts
    this.open = []; // { mark, count, place in out }
    this.found = new Map(); // where marks were found last
  }

  read() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      const place = found ? found.index : text.length;
      if (place > this.at) this.out.push(text.slice(this.at, place));
      this.at = place;
      if (found) this.special(found[0]);
    }
    return this.out;
  }

  special(character) {
    switch (character) {
      case "\\":
        return this.escaped();
      case "`":
        return this.code();
      case "*":
      case "_":
      case "~":
        return this.emphasis(character);
      case "[":
        return this.mark("[", 1);
      case "!":
        if (this.text[this.at + 1] !== "[") return this.take(1);
        return this.mark("![", 1);
      case "]":
        return this.link();
      case "<":
        return this.angled();
      case "$":
        return this.dollars();
      case "h":
        return this.address();
      default:
        return this.take(1);
    }
  }

  /** Takes characters as text. */
  take(count) {
    this.out.push(this.text.slice(this.at, this.at + count));
    this.at += count;
  }

  escaped() {
    const next = this.text[this.at + 1];
    if ((next === "(" && this.formula("\\(", "\\)", false)) || (next === "[" && this.formula("\\[", "\\]", true))) return;
    if (next && /[!-/:-@[-`{-~]/.test(next)) {
      this.out.push(next);
      this.at += 2;
    } else this.take(1);
  }

  /** Returns where a text comes next; -1 if it does not. The text is searched once for each mark. */
  find(wanted, from) {
    const last = this.found.get(wanted) ?? 0;
    if (last < 0 || last >= from) return last;
    const place = this.text.indexOf(wanted, from);
    this.found.set(wanted, place);
    return place;
  }

  code() {
    const count = runLength(this.text, this.at, "`");
    const start = this.at + count;
    const end = this.closingTicks(start, count);
    if (end < 0) return this.take(count);
    const inside = this.text.slice(start, end).replaceAll("\n", " ");
    const isPadded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
    this.out.push(h("code", {}, isPadded ? inside.slice(1, -1) : inside));
    this.at = end + count;
  }

  /** Returns where a run of exactly `count` ticks begins, from a place on. */
  closingTicks(from, count) {
    this.ticks ??= tickRuns(this.text);
    const runs = this.ticks.get(count) ?? [];
    while (runs.length && runs.at(-1) < from) runs.pop(); // the last is the next
    return runs.at(-1) ?? -1;
  }

  // -- maths ----------------------------------------------------------------------------------------------------------

  /** Takes a formula; false if there is none. */
  formula(open, close, isDisplay) {
    const start = this.at + open.length;
    const end = this.find(close, start);
    if (end < 0 || end === start || end - start > MAX_FORMULA) return false;
    this.out.push(mathsView(this.text.slice(start, end), isDisplay));
    this.at = end + close.length;
    return true;
  }

  dollars() {
    const { text, at } = this;
    if (text[at + 1] === "$") return this.formula("$$", "$$", true) || this.take(2);
    const end = this.find("$", at + 1);
    const inside = text.slice(at + 1, end);
    // As in Pandoc: no space inside the marks and no digit after them, so that "$5 and $6" are amounts.
    const isFormula = end > at + 1 && inside.length <= MAX_FORMULA && !/^\s|\s$|\n/.test(inside) && !/\d/.test(text[end + 1] ?? "");
    if (!isFormula) return this.take(1);
    this.out.push(mathsView(inside, false));
    this.at = end + 1;
  }

  // -- emphasis -------------------------------------------------------------------------------------------------------

  /** Opens what may end later. */
  mark(text, count) {
    this.open.push({ mark: text, count, place: this.out.length, at: this.at });
    if (this.open.length > MAX_OPEN) this.open.shift();
    this.out.push(text);
    this.at += text.length;
  }

  emphasis(mark) {
    const { text, at } = this;
    const count = runLength(text, at, mark);
    const before = text[at - 1] ?? " ";
    const after = text[at + count] ?? " ";
    if (count > MAX_RUN || (mark === "~" && count !== 2)) return this.take(count);
    const isLeft = !isSpace(after) && (!PUNCTUATION.test(after) || isSpace(before) || PUNCTUATION.test(before));
    const isRight = !isSpace(before) && (!PUNCTUATION.test(before) || isSpace(after) || PUNCTUATION.test(after));
    // A single mark inside a word is none: snake_case, and a*b*c in a text about code.
    const isStrict = mark === "_" || (mark === "*" && count === 1 && /\w/.test(before) && /\w/.test(after));
    const canOpen = isLeft && (!isStrict || !isRight || PUNCTUATION.test(before));
    const canClose = isRight && (!isStrict || !isLeft || PUNCTUATION.test(after));
    this.at += count;
    let left = canClose ? this.close(mark, count, canOpen) : count;
    if (!left) return;
    if (canOpen) {
      this.open.push({ mark, count: left, place: this.out.length, both: canClose });
      if (this.open.length > MAX_OPEN) this.open.shift();
    }
    this.out.push(mark.repeat(left));
  }

  /** Ends what is open by a run of marks; returns how many of them are left. */
  close(mark, count, both) {
    while (count) {
      let n = this.open.length - 1;
      // The rule of three of CommonMark: `a**b*c` closes nothing.
      const fits = (one) => one.mark === mark && (mark !== "~" || one.count === count) && !((one.both || both) && (one.count + count) % 3 === 0 && (one.count % 3 || count % 3));
      while (n >= 0 && !fits(this.open[n])) n--;
      if (n < 0) return count;
      const opener = this.open[n];
      const used = Math.min(opener.count, count, 2);
      const inside = this.out.splice(opener.place + 1);
      this.open.length = n + 1;
      opener.count -= used;
      count -= used;
      const element = fill(h(mark === "~" ? "s" : used === 2 ? "strong" : "em"), inside);
      if (opener.count) this.out[opener.place] = mark.repeat(opener.count);
      else {
        this.out.length = opener.place;
        this.open.length = n;
      }
      this.out.push(element);
    }
    return 0;
  }

  // -- links ----------------------------------------------------------------------------------------------------------

  link() {
    const n = this.open.findLastIndex(({ mark }) => mark === "[" || mark === "![");
    if (n < 0) return this.take(1);
    const { place, mark } = this.open[n];
    const target = this.text[this.at + 1] === "(" ? destination(this.text, this.at + 2) : null;
    this.open.length = n;
    if (!target) return this.take(1);
    const label = this.out.slice(place + 1);
    // Any other target stays text.
    if (!IS_SAFE.test(target.address)) return this.take(target.end - this.at);
    this.out.length = place;
    this.at = target.end;
    this.out.push(anchor(target.address, mark === "![" ? ["Picture: ", ...label] : label, target.title));
    this.open = this.open.filter((one) => one.mark !== "["); // a link has no links inside
  }

  angled() {
    ANGLED.lastIndex = this.at;
    const found = ANGLED.exec(this.text);
    if (!found) return this.take(1);
    this.at += found[0].length;
    const [, inside] = found;
    this.out.push(/^br/i.test(inside) ? h("br") : anchor(inside, [inside.replace(/^mailto:/i, "")]));
  }

  address() {
    ADDRESS.lastIndex = this.at;
    const before = this.text[this.at - 1] ?? " ";
    const found = /[\p{L}\p{N}_]/u.test(before) ? null : ADDRESS.exec(this.text);
    if (!found || this.open.some(({ mark }) => mark === "[")) return this.take(found ? found[0].length : 1);
    const address = trimmed(found[0]);
    if (!address) return this.take(found[0].length);
    this.out.push(anchor(address, [address]));
    this.at += address.length;
  }
}

const isSpace = (character) => /\s/.test(character);

function runLength(text, at, mark) {
  let end = at;
  while (text[end] === mark) end++;
  return end - at;
}

/** Returns, by length, where runs of ticks begin, the last first. */
function tickRuns(text) {
  const runs = new Map();
  for (let at = text.indexOf("`"); at >= 0; ) {
    const count = runLength(text, at, "`");
    if (!runs.has(count)) runs.set(count, []);
    runs.get(count).push(at);
    at = text.indexOf("`", at + count);
  }
  for (const places of runs.values()) places.reverse();
  return runs;
}

/** Reads `address "title")`; parentheses in an address balance. Returns { address, title, end } or null. */
function destination(text, at) {
  const limit = Math.min(text.length, at + MAX_ADDRESS);
  let address = "";
  if (text[at] === "<") {
    const end = text.slice(at, limit).search(/[>\n]/);
    if (end < 0 || text[at + end] !== ">") return null;
    address = text.slice(at + 1, at + end);
    at += end + 1;
  } else {
    const start = at;
    for (let depth = 0; at < limit; at++) {
      const one = text[at];
      if (/\s/.test(one) || (one === ")" && !depth)) break;
      if (one === "(" && ++depth > 32) return null;
      if (one === ")") depth--;
      if (one === "\\") at++;
    }
    address = text.slice(start, at).replace(/\\([()\\])/g, "$1");
  }
  const rest = text.slice(at, at + MAX_TITLE + 8);
  const found = /^\s{0,4}(?:"([^"\n]{0,300})"|'([^'\n]{0,300})')?\s{0,4}\)/.exec(rest);
  return found && { address, title: found[1] ?? found[2], end: at + found[0].length };
}

/** Returns an address without the punctuation of the sentence around it. */
function trimmed(address) {
  let end = address.length;
  let open = 0;
  for (const one of address) open += one === "(" ? 1 : one === ")" ? -1 : 0;
  for (; end; end--) {
    const last = address[end - 1];
    if (last === ")" && open < 0) open++;
    else if (!"'.,;:!?*_~|]".includes(last)) break;
  }
  return /:\/\/./.test(address.slice(0, end)) ? address.slice(0, end) : "";
}

const anchor = (address, label, title) =>
  fill(h("a", { href: address, title, rel: "noopener noreferrer nofollow", target: "_blank" }), label);
