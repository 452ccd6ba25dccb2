// Conversations as files: JSON holds everything, Markdown the branch that is shown. An imported file is a stranger's:
// it is checked, every known field is copied, and nothing else is.
import { withFiles } from "../chat/files.js";
import { textOf } from "../dom.js";
import { NAMES } from "../chat/settings.js";
import { newId, newTalk, path, titleOf } from "./tree.js";

const MAX_FILE = 20 * 2 ** 20; // bytes
const FORMAT = "eyas.conversations";
const VERSION = 1;
const MAX_MESSAGES = 20_000;
const SPEAKERS = { "## You": "user", "## Model": "assistant", "## Result of a call": "tool" };
const HEADINGS = Object.fromEntries(Object.entries(SPEAKERS).map(([heading, role]) => [role, heading]));

export class BadFile extends Error {}

export const toJson = (talks) => JSON.stringify({ format: FORMAT, version: VERSION, conversations: talks }, null, 1);

/** Returns a conversation as a person reads it. A line that looks like one of our headings gets a backslash. */
export function toMarkdown(talk) {
  const parts = path(talk).map((message) => {
    const text = withFiles(message).replace(/^(\\*)(?=## (?:You|Model|Result of a call)\s*$)/gm, "$1\\");
    return `${HEADINGS[message.role]}\n\n${text.trim()}\n`;
  });
  return [`# ${titleOf(talk)}\n`, ...parts].join("\n");
}

export const fileName = (talk, ending) =>
  `${titleOf(talk).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation"}.${ending}`;

/** Returns the conversations of a file that a person chose. Throws BadFile. */
export async function read(file) {
  if (file.size > MAX_FILE) throw new BadFile(`'${file.name}' is larger than ${MAX_FILE / 2 ** 20} MiB.`);
  const text = await textOf(file);
  if (text === null) throw new BadFile(`'${file.name}' is not text in UTF-8.`);
  try {
    return /^\s*[{[]/.test(text) ? fromJson(text) : [fromMarkdown(text)];
  } catch (error) {
    throw error instanceof BadFile ? new BadFile(`'${file.name}' was not imported: ${error.message}`) : error;
  }
}

export function fromMarkdown(text) {
  const talk = newTalk();
  const [first, ...rest] = text.split(/\r?\n/);
  if (first.startsWith("# ")) talk.title = first.slice(2).trim().slice(0, 200);
  let lines = null;
  let role = null;
  const close = () => {
    if (!lines) return;
    const id = newId();
    const content = lines.join("\n").trim();
    talk.messages[id] = { id, parent: talk.leaf, at: talk.created + Object.keys(talk.messages).length, role, content };
    if (role === "assistant") talk.messages[id].finish = "stop";
    talk.leaf = id;
  };
  for (const line of first.startsWith("# ") ? rest : [first, ...rest]) {
    const speaker = SPEAKERS[line.trimEnd()];
    if (speaker) {
      close();
      [lines, role] = [[], speaker];
    } else lines?.push(line.replace(/^\\(\\*## )/, "$1"));
  }
  close();
  if (!talk.leaf) throw new BadFile("it has no line '## You' or '## Model'.");
  return talk;
}

export function fromJson(text) {
  let whole;
  try {
    whole = JSON.parse(text);
  } catch (error) {
    throw new BadFile(`it is not JSON: ${error.message}.`);
  }
  const { format, version, conversations } = isObject(whole) ? whole : {};
  if (format !== FORMAT) throw new BadFile(`'format' must be '${FORMAT}'.`);
  if (version !== VERSION) throw new BadFile(`version ${String(version).slice(0, 20)} is not known; this page reads ${VERSION}.`);
  if (!Array.isArray(conversations)) throw new BadFile("'conversations' must be a list.");
  return conversations.map((talk, n) => checkedTalk(talk, `conversations[${n}]`));
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// What a value must be, and the copy of it. Each throws BadFile with the place.
const text = (value, where) => need(typeof value === "string", value, `${where} must be a text.`);
const number = (value, where) => need(Number.isFinite(value), value, `${where} must be a number.`);
const need = (isRight, value, reason) => {
  if (!isRight) throw new BadFile(reason);
  return value;
};
const listOf = (check) => (value, where) =>
  need(Array.isArray(value), value, `${where} must be a list.`).map((one, n) => check(one, `${where}[${n}]`));
const fields = (checks) => (value, where) => {
  need(isObject(value), value, `${where} must be an object.`);
  const known = Object.keys(checks).filter((name) => Object.hasOwn(value, name) && value[name] != null);
  return Object.fromEntries(known.map((name) => [name, checks[name](value[name], `${where}.${name}`)]));
};
const all = (names, check) => fields(Object.fromEntries(names.map((name) => [name, check])));
const settings = all(NAMES, text);
const COUNTS = "prompt_tokens completion_tokens total_tokens predicted_n predicted_per_second draft_n draft_n_accepted mean_acceptance_length";
const numbers = all(COUNTS.split(" "), number);
const message = fields({
  role: text,
  content: text,
  reasoning: text,
  finish: text,
  at: number,
  call: text,
  calls: listOf(fields({ id: text, name: text, arguments: text })),
  by: listOf(text),
  files: listOf(fields({ name: text, text, tokens: number })),
  timings: numbers,
  usage: numbers,
  speculation: numbers,
});

/** Returns a conversation with new ids, so that it meets none that is here. */
function checkedTalk(given, where) {
  need(isObject(given) && isObject(given.messages), given, `${where} must have an object 'messages'.`);
  const entries = Object.entries(given.messages);
  need(entries.length && entries.length <= MAX_MESSAGES, given, `${where} must have 1 to ${MAX_MESSAGES} messages.`);
  const ids = new Map(entries.map(([id]) => [id, newId()]));
  const talk = newTalk(given.settings ? settings(given.settings, `${where}.settings`) : {});
  if (given.title != null) talk.title = text(given.title, `${where}.title`).slice(0, 200);
  if (given.created != null) talk.created = number(given.created, `${where}.created`);
  for (const [id, value] of entries) {
    const place = `${where}.messages.${id.slice(0, 40)}`;
    const one = message(value, place);
    need(Object.hasOwn(HEADINGS, one.role), one, `${place}.role must be user, assistant or tool.`);
    need(one.content !== undefined, one, `${place}.content is missing.`);
    const parent = value.parent ?? null;
    need(parent === null || ids.has(parent), one, `${place}.parent is no message of this conversation.`);
    if (one.role === "assistant") one.finish ??= "stop";
    const at = one.at ?? talk.created;
    talk.messages[ids.get(id)] = { ...one, id: ids.get(id), parent: parent === null ? null : ids.get(parent), at };
  }
  checkTree(talk, where);
  const last = Object.keys(talk.messages).at(-1);
  talk.leaf = ids.get(given.leaf) ?? last;
  return talk;
}

/** Throws BadFile if a message is its own ancestor. */
function checkTree({ messages }, where) {
  const good = new Set();
  for (const id of Object.keys(messages)) {
    const walked = new Set();
    let at = id;
    for (; at !== null && !good.has(at); at = messages[at].parent) {
      need(!walked.has(at), at, `${where} has a message that follows itself.`);
      walked.add(at);
    }
    for (const one of walked) good.add(one);
  }
}
