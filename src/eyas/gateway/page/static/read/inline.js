// Text inside a block: code, emphasis, links, maths. One pass: each character is read once, and what is open is bounded.
// A long text is cut into pieces, so that a growing one is read again from its last piece on.
import { h } from "../dom.js";
import { mathsView } from "./maths.js";

const MAX_OPEN = 16; // marks that wait for their end; an older one becomes text, which also bounds how deep elements nest
const MAX_RUN = 3; // `****` and longer are no emphasis
const MAX_SPAN = 2400; // characters between two marks that belong together; more than a link has
const PIECE = 2000; // characters; a longer piece ends with the sentence, one of twice as many with the word
const SENTENCE = /(?<=[.!?:;] |[。！？])\S/;
const WORD = /(?<=\s)\S/;
const MAX_FLOWING = 8; // pieces; those of a longer text are blocks, so that each is laid out by itself
const MAX_ADDRESS = 2048;
const MAX_TITLE = 300;
const SPECIAL = /[\\`*_~[\]<$]|!\[|https?:\/\//g;
const READERS = { "\\": "escaped", "`": "code", "]": "link", "<": "angled", $: "dollars", h: "address" };
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ADDRESS = /https?:\/\/[^\s<>"`]{1,2048}/y;
const ANGLED = /<(https?:\/\/[^\s<>]{1,2048}|mailto:[^\s<>]{1,320}|br ?\/?)>/iy;
const IS_SAFE = /^(https?:\/\/|mailto:)/i;

/** Puts a text into an element, and returns the element. */
export function inline(text, element) {
  new Prose(element).set(text);
  return element;
}

/** A growing text in an element. */
export class Prose {
  constructor(element) {
    this.element = element;
    this.text = "";
    this.starts = [0]; // of the pieces
  }

  set(text) {
    if (!text.startsWith(this.text)) this.starts = [0];
    this.text = text;
    const kept = this.starts.length - 1;
    const fresh = [];
    for (let at = this.starts[kept]; at !== null; ) {
      const { nodes, end } = new Inline(text, at).read();
      fresh.push(nodes);
      if (end !== null) this.starts.push(end);
      at = end;
    }
    const { element } = this;
    const isLong = this.starts.length > 1;
    element.classList.toggle("pieces", this.starts.length > MAX_FLOWING);
    while (element.childNodes.length > kept) element.lastChild.remove();
    if (isLong) for (const nodes of fresh) element.append(fill(h("span"), nodes));
    else fill(element, fresh[0]);
  }
}

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
  constructor(text, start) {
    Object.assign(this, { text, start, at: start });
    this.out = []; // nodes and texts
    this.open = []; // { mark, count, place in out, at }
    this.found = new Map(); // where marks were found last
    this.unsure = -Infinity; // where a mark was last whose other half may still come
  }

  /** Returns the nodes of a piece, and where the next one begins; null if this is the last. */
  read() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      const place = found ? found.index : text.length;
      const end = this.cut(place);
      this.out.push(text.slice(this.at, end ?? place));
      if (end !== null) return { nodes: this.out, end };
      this.at = place;
      while (this.open.length && place - this.open[0].at > MAX_SPAN) this.open.shift();
      if (found) this.special(found[0]);
    }
    return { nodes: this.out, end: null };
  }

  /** Returns where a piece may end in the plain text up to `place`: nothing that comes later changes what is before. */
  cut(place) {
    const from = Math.max(this.at, this.start + PIECE, this.unsure + MAX_SPAN);
    if (from > place || this.open.some(({ at }) => from - at <= MAX_SPAN)) return null;
    const words = Math.max(from, this.start + 2 * PIECE);
    for (const [start, end, pattern] of [[from, words, SENTENCE], [words, place + 1, WORD]]) {
      const found = this.text.slice(start, Math.min(end, place + 1)).search(pattern);
      if (found >= 0) return start + found;
    }
    return null;
  }

  special(found) {
    if (found === "[" || found === "![") this.mark(found);
    else this[READERS[found[0]] ?? "emphasis"](found);
  }

  /** Takes a mark as text whose other half is not there, or not yet. */
  leave(count) {
    this.take(count);
    this.unsure = this.at;
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
    if (end < 0 || end - start > MAX_SPAN) return this.leave(count);
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

  // -- maths --

  /** Takes a formula; false if there is none. */
  formula(open, close, isDisplay) {
    const start = this.at + open.length;
    const end = this.find(close, start);
    if (end < 0 || end === start || end - start > MAX_SPAN) {
      this.unsure = start;
      return false;
    }
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
    const isFormula = end > at + 1 && inside.length <= MAX_SPAN && !/^\s|\s$|\n/.test(inside) && !/\d/.test(text[end + 1] ?? "");
    if (!isFormula) return this.leave(1);
    this.out.push(mathsView(inside, false));
    this.at = end + 1;
  }

  // -- emphasis --

  /** Opens what may end later. */
  mark(mark, more) {
    this.open.push({ mark, place: this.out.length, at: this.at, ...more });
    if (this.open.length > MAX_OPEN) this.open.shift();
    this.take(more?.count ?? mark.length);
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
    const left = canClose ? this.close(mark, count, canOpen) : count;
    this.at += count - left;
    if (canOpen && left) this.mark(mark, { count: left, both: canClose });
    else this.take(left);
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

  // -- links --

  link() {
    const n = this.open.findLastIndex(({ mark }) => mark === "[" || mark === "![");
    if (n < 0) return this.take(1);
    const { place, mark } = this.open[n];
    this.open.length = n;
    if (this.text[this.at + 1] !== "(") return this.take(1);
    const target = destination(this.text, this.at + 2);
    if (!target) return this.leave(1);
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
    const [all, inside] = found;
    this.at += all.length;
    this.out.push(/^br/i.test(inside) ? h("br") : anchor(inside, [inside.replace(/^mailto:/i, "")]));
  }

  address() {
    ADDRESS.lastIndex = this.at;
    const [all] = /[\p{L}\p{N}_]/u.test(this.text[this.at - 1] ?? " ") ? ["h"] : (ADDRESS.exec(this.text) ?? ["h"]);
    const address = this.open.some(({ mark }) => mark === "[") ? "" : trimmed(all);
    if (!address) return this.take(all.length);
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
