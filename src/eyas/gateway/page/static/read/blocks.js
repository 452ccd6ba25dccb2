// Cuts lines of Markdown into blocks. Each line is looked at a bounded number of times, and no pattern backtracks.
//
// block  { kind, lines, start } and, by kind: code { label: language, code }, heading { level, text }, maths { text },
//        quote { inside: lines }, table { head, aligns, rows }, paragraph { text },
//        list { ordered, start, items: [{ lines, task: null | false | true }] }; `label` tells alike blocks apart

const MAX_DEPTH = 8; // of quotes and lists; what is deeper stays text
const MAX_COLUMNS = 100;
const MAX_FORMULA_LINES = 60;
const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^\s`]*)([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const TASK = /^\[([ xX])\] /;
const DISPLAY = { $$: "$$", "\\[": "\\]" };

/** Returns the blocks of lines from one of them on. */
export function split(lines, from = 0, depth = 0) {
  const blocks = [];
  for (let i = from; i < lines.length; ) {
    if (!lines[i].trim()) {
      i++;
      continue;
    }
    const { end, ...block } = next(lines, i, depth);
    blocks.push({ label: "", ...block, lines: lines.slice(i, end), at: i });
    i = end;
  }
  return blocks;
}

/** Returns the block that begins at line i, and the line after it. */
function next(lines, i, depth) {
  const line = lines[i];
  const canNest = depth < MAX_DEPTH;
  const fence = FENCE.exec(line);
  if (fence) return code(lines, i, fence);
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, text: headingText(line.slice(heading[0].length)), end: i + 1 };
  if (isRule(line)) return { kind: "rule", end: i + 1 };
  const maths = display(lines, i);
  if (maths) return maths;
  if (canNest && QUOTE.test(line)) {
    const end = until(lines, i + 1, (n) => !lines[n].trim() || (!QUOTE.test(lines[n]) && begins(lines, n)));
    return { kind: "quote", inside: lines.slice(i, end).map((one) => one.replace(QUOTE, "")), end };
  }
  if (canNest && ITEM.test(line)) return list(lines, i);
  if (isTable(lines, i)) return table(lines, i);
  const end = until(lines, i + 1, (n) => !lines[n].trim() || begins(lines, n) || isTable(lines, n));
  return { kind: "paragraph", text: lines.slice(i, end).join("\n"), end };
}

function until(lines, i, isOver) {
  while (i < lines.length && !isOver(i)) i++;
  return i;
}

/** Whether a line ends a paragraph. */
const begins = (lines, n) =>
  FENCE.test(lines[n]) || HEADING.test(lines[n]) || QUOTE.test(lines[n]) || ITEM.test(lines[n]) || isRule(lines[n]) || opensMaths(lines[n]) !== null;

function code(lines, i, [, indent, mark, language]) {
  const isClosing = (text) => text.length >= mark.length && !text.replaceAll(mark[0], "");
  const end = until(lines, i + 1, (n) => isClosing(lines[n].trim()));
  const inside = lines.slice(i + 1, end);
  const outdented = indent ? inside.map((line) => line.slice(Math.min(indent.length, line.length - line.trimStart().length))) : inside;
  return { kind: "code", label: language, code: outdented, end: Math.min(end + 1, lines.length) };
}

function isRule(line) {
  const text = line.trim();
  if (!"-*_".includes(text[0] ?? " ") || line.length - line.trimStart().length > 3) return false;
  const marks = text.replaceAll(" ", "");
  return marks.length >= 3 && !marks.replaceAll(marks[0], "");
}

function headingText(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end--;
  return end === 0 || trimmed[end - 1] === " " ? trimmed.slice(0, end).trim() : trimmed;
}

/** Returns what opens display maths at the beginning of a line. */
function opensMaths(line) {
  const text = line.trimStart().slice(0, 2);
  return Object.hasOwn(DISPLAY, text) ? text : null;
}

/** Returns the maths of whole lines; null if there is none, or not yet its end. */
function display(lines, i) {
  const open = opensMaths(lines[i]);
  if (!open) return null;
  const close = DISPLAY[open];
  const first = lines[i].trim();
  if (first.length > 3 && first.endsWith(close)) return { kind: "maths", text: first.slice(2, -2), end: i + 1 };
  if (first.includes(close, 2)) return null; // goes on as a sentence
  const last = Math.min(lines.length, i + MAX_FORMULA_LINES);
  const end = until(lines, i + 1, (n) => n >= last || !lines[n].trim() || lines[n].trimEnd().endsWith(close));
  if (end >= last || !lines[end].trim()) return null;
  const text = [first.slice(2), ...lines.slice(i + 1, end), lines[end].trimEnd().slice(0, -2)].join("\n");
  return { kind: "maths", text, end: end + 1 };
}

// -- tables --

/** Returns the cells of a row; a `\|` is no border, nor is one in a code span. */
export function cells(row) {
  const text = row.trim();
  const found = [];
  let cell = "";
  for (let i = text[0] === "|" ? 1 : 0; i < text.length && found.length <= MAX_COLUMNS; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") {
      cell += "|";
      i++;
    } else if (text[i] === "|") {
      found.push(cell.trim());
      cell = "";
    } else cell += text[i];
  }
  return text.endsWith("|") && !cell.trim() ? found : [...found, cell.trim()];
}

/** Whether a row and its line of dashes begin a table. */
function isTable(lines, i) {
  const dashes = lines[i + 1];
  if (dashes === undefined || !lines[i].includes("|") || !/^[ \t|:-]+$/.test(dashes) || !dashes.includes("|")) return false;
  const marks = cells(dashes);
  return marks.length <= MAX_COLUMNS && marks.every((mark) => /^:?-+:?$/.test(mark)) && cells(lines[i]).length === marks.length;
}

function table(lines, i) {
  const end = until(lines, i + 2, (n) => !lines[n].includes("|") || begins(lines, n));
  const aligns = cells(lines[i + 1]).map((mark) => {
    if (mark.endsWith(":")) return mark.startsWith(":") ? "middle" : "right";
    return null;
  });
  return { kind: "table", label: `${lines[i]}\n${lines[i + 1]}`, head: cells(lines[i]), aligns, rows: lines.slice(i + 2, end), end };
}

// -- lists --

const isNumber = (marker) => marker.length > 1;

function list(lines, i) {
  const [, base, marker] = ITEM.exec(lines[i]);
  const limit = base.length + 1; // an item that is indented further belongs to the one before
  const items = [];
  let indent = 0;
  let n = i;
  for (; n < lines.length; n++) {
    const line = lines[n];
    if (!line.trim()) {
      const after = lines[n + 1] ?? "";
      const item = ITEM.exec(after);
      const goesOn = item ? item[1].length > limit || isNumber(item[2]) === isNumber(marker) : /^ {2,}\S/.test(after);
      if (!goesOn || (item && isRule(after))) break;
      items.at(-1).push("");
      continue;
    }
    const item = isRule(line) && line.length - line.trimStart().length <= limit ? null : ITEM.exec(line);
    if (item && item[1].length <= limit) {
      if (isNumber(item[2]) !== isNumber(marker)) break;
      indent = Math.min(item[0].length, item[1].length + item[2].length + 1);
      items.push([line.slice(indent)]);
    } else if (item || /^ {2,}\S/.test(line)) {
      items.at(-1).push(line.slice(Math.min(indent, line.length - line.trimStart().length)));
    } else if (lines[n - 1].trim() && !begins(lines, n)) items.at(-1).push(line);
    else break;
  }
  const ordered = isNumber(marker);
  const start = ordered ? parseInt(marker, 10) : null;
  return { kind: "list", label: `${ordered ? start : ""}`, ordered, start, items: items.map(taskOf), end: n };
}

/** Takes the box of a task from an item. */
function taskOf(lines) {
  const task = TASK.exec(lines[0]);
  if (!task) return { lines, task: null };
  return { lines: [lines[0].slice(task[0].length), ...lines.slice(1)], task: task[1] !== " " };
}
