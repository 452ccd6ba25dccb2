// Renders a small part of Markdown to elements. The model's text only becomes text nodes, never HTML.
import { h } from "./stream.js";

const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,}\s*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const QUOTE = /^ {0,3}> ?/;
const DASHES = /^ *\|?( *:?-+:? *\|)+( *:?-+:? *)?$/;

/** Shows a growing text in an element. Blocks that did not change keep their elements, and with them the selection. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.sources = [];
  }

  set(text) {
    const blocks = split(text.split("\n"));
    const sources = blocks.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < sources.length && sources[same] === this.sources[same]) same++;
    while (this.element.children.length > same) this.element.lastChild.remove();
    this.element.append(...blocks.slice(same).map(build));
    this.sources = sources;
  }
}

/** Parses lines into blocks; quotes and lists have blocks of their own, down to MAX_DEPTH. */
function split(lines, depth = 0) {
  const blocks = [];
  const canNest = depth < MAX_DEPTH;
  for (let i = 0; i < lines.length; ) {
    const start = i;
    const line = lines[i];
    const fence = FENCE.exec(line);
    const take = (more) => {
      while (i < lines.length && more(lines[i], i)) i++;
      return lines.slice(start, i);
    };
    if (!line.trim()) i++;
    else if (fence) {
      i++;
      const code = take((l) => !(l.trim().startsWith(fence[1]) && !l.trim().replaceAll(fence[1][0], "")));
      blocks.push({ kind: "code", language: fence[2], text: code.slice(1).join("\n") });
      i++;
    } else if (HEADING.test(line)) {
      blocks.push({ kind: "heading", level: HEADING.exec(line)[1].length, text: HEADING.exec(line)[2] });
      i++;
    } else if (RULE.test(line)) {
      blocks.push({ kind: "rule" });
      i++;
    } else if (canNest && QUOTE.test(line)) {
      const inside = take((l) => l.trim()).map((l) => l.replace(QUOTE, ""));
      blocks.push({ kind: "quote", blocks: split(inside, depth + 1) });
    } else if (line.includes("|") && DASHES.test(lines[i + 1] ?? "")) {
      const rows = take((l) => l.includes("|")).filter((_, n) => n !== 1);
      blocks.push({ kind: "table", rows: rows.map(cells) });
    } else if (canNest && ITEM.test(line)) {
      blocks.push(list(take((l, n) => n === start || inList(lines, n, ITEM.exec(line))), depth + 1));
    } else {
      const text = take((l, n) => n === start || (l.trim() && !begins(l))).join("\n");
      blocks.push({ kind: "paragraph", text });
    }
  }
  return blocks;
}

const begins = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

/** Whether line n continues the list that a first item began; a bullet among numbers begins another one. */
function inList(lines, n, [, base, marker]) {
  const isOther = (item) => item && item[1].length <= base.length + 1 && /\d/.test(item[2]) !== /\d/.test(marker);
  const isBlank = !lines[n].trim();
  const line = isBlank ? (lines[n + 1] ?? "") : lines[n];
  const item = ITEM.exec(line);
  if (item || /^ {2,}\S/.test(line)) return !isOther(item);
  return !isBlank && lines[n - 1].trim() !== "" && !begins(line);
}

function list(lines, depth) {
  const [, base, marker] = ITEM.exec(lines[0]);
  const items = [];
  let indent = 0;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= base.length + 1) {
      indent = item[0].length;
      items.push([line.slice(indent)]);
    } else items.at(-1).push(line.replace(new RegExp(`^ {0,${indent}}`), ""));
  }
  const ordered = /\d/.test(marker);
  const start = ordered ? parseInt(marker) : null;
  return { kind: "list", ordered, start, items: items.map((item) => split(item, depth)) };
}

function build(block) {
  switch (block.kind) {
    case "code":
      return codeBlock(block);
    case "heading":
      return h(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(block.text));
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", {}, ...block.blocks.map(build));
    case "table":
      return h("div", { class: "table", tabindex: "0" }, table(block.rows));
    case "list":
      return h(block.ordered ? "ol" : "ul", { start: block.start }, ...block.items.map(listItem));
    default:
      return h("p", {}, ...inline(block.text));
  }
}

const table = ([head, ...body]) =>
  h(
    "table",
    {},
    h("thead", {}, h("tr", {}, ...head.map((cell) => h("th", {}, ...inline(cell))))),
    h("tbody", {}, ...body.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, ...inline(cell)))))),
  );

/** Returns the content of an item; a tight one holds its text directly, without a paragraph. */
function listItem([first, ...rest]) {
  if (first?.kind === "paragraph") return h("li", {}, ...inline(first.text), ...rest.map(build));
  return h("li", {}, ...(first ? [first, ...rest] : []).map(build));
}

function codeBlock({ language, text }) {
  const copy = h("button", { class: "quiet", type: "button" }, "Copy");
  copy.onclick = async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  };
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head" }, h("span", {}, language || "text"), copy),
    h("pre", { tabindex: "0" }, h("code", {}, text)),
  );
}

const INLINE = new RegExp(
  [
    /(`+)(?!`)(.+?)(?<!`)\1(?!`)/, // code
    /\*\*(?=\S)(.+?)(?<=\S)\*\*/, // bold
    /(?<![\w*])[*_](?=[^\s*_])([^*_]*[^\s*_])[*_](?!\w)/, // italic
    /~~(.+?)~~/, // struck
    /\[([^\]\n]+)\]\(([^\s()]+)\)/, // link: label, target
    /(https?:\/\/[^\s<>()"']+[^\s<>()"'.,;:!?])/, // bare address
  ]
    .map((pattern) => pattern.source)
    .join("|"),
  "gs",
);

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, , code, bold, italic, struck, label, target, url] = match;
    nodes.push(text.slice(end, match.index));
    if (code) nodes.push(h("code", {}, code.replace(/^ (.+) $/s, "$1")));
    else if (bold) nodes.push(h("strong", {}, ...inline(bold)));
    else if (italic) nodes.push(h("em", {}, ...inline(italic)));
    else if (struck) nodes.push(h("s", {}, ...inline(struck)));
    else nodes.push(link(label ?? url, target ?? url, all));
    end = match.index + all.length;
  }
  return [...nodes, text.slice(end)];
}

/** Makes a link to a page or a mail address; any other target stays text. */
const link = (label, target, source) =>
  /^(https?:\/\/|mailto:)/i.test(target)
    ? h("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, label)
    : source;
