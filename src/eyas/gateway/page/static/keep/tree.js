// A conversation is a tree of messages: an edited question and a second answer are branches. Pure functions.
//
// talk     { id, title, titled, created, changed, settings, configured, messages: { id: message }, leaf }; times in ms
//          since 1970: `titled` and `configured` are when a person gave title and settings
// message  { id, parent, at, role: "user" | "assistant" | "tool", content, ... }; `parent` is null for a first one

/** Returns a name that nothing else has. `crypto.randomUUID` is missing over plain http from another name. */
export const newId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(36)).join("");

export function newTalk(settings = {}) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, changed: now, settings, messages: {}, leaf: null };
}

/** Returns the messages from the first to the leaf. */
export function path(talk) {
  const found = [];
  for (let id = talk.leaf; id !== null && talk.messages[id]; id = talk.messages[id].parent) found.push(talk.messages[id]);
  return found.reverse();
}

/** Appends a message at the leaf, and returns it. */
export function add(talk, message) {
  const { messages } = talk;
  const at = Math.max(Date.now(), (messages[talk.leaf]?.at ?? 0) + 1);
  const whole = { id: newId(), parent: talk.leaf, at, ...message };
  messages[whole.id] = whole;
  talk.leaf = whole.id;
  talk.changed = Date.now();
  return whole;
}

/** Takes back a message that nothing follows. */
export function drop(talk, { id, parent }) {
  delete talk.messages[id];
  if (talk.leaf === id) talk.leaf = parent;
}

/** Returns the ids below each message, oldest first; `null` has the first messages. */
export function families(talk) {
  const below = new Map();
  for (const { id, parent } of Object.values(talk.messages).sort((a, b) => a.at - b.at)) {
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(id);
  }
  return below;
}

/** Shows the branch of a message, down to its newest end. */
export function choose(talk, id) {
  const below = families(talk);
  while (below.has(id)) id = below.get(id).at(-1);
  talk.leaf = id;
}

/** Whether an answer has nothing yet. */
export const isEmpty = ({ role, content, reasoning, calls }) => role === "assistant" && !content && !reasoning && !calls?.length;

/** Returns what is kept: without answers that have nothing yet. */
export function packed(talk) {
  const messages = Object.fromEntries(Object.entries(talk.messages).filter(([, one]) => !isEmpty(one)));
  const leaf = messages[talk.leaf] ? talk.leaf : (talk.messages[talk.leaf]?.parent ?? null);
  return { ...talk, messages, leaf };
}

/** Returns one conversation of two states of it, of two tabs. No message is lost, the longer text of an answer wins, and
    so does the newer title, the newer settings, the newer branch. */
export function merged(mine, stored) {
  const messages = { ...stored.messages };
  const length = ({ content, reasoning = "" }) => content.length + reasoning.length;
  for (const [id, one] of Object.entries(mine.messages)) {
    const other = messages[id];
    if (!other || one.finish || length(one) >= length(other)) messages[id] = one;
  }
  const newer = (time) => ((mine[time] ?? 0) >= (stored[time] ?? 0) ? mine : stored);
  const { title, titled } = newer("titled");
  const { settings, configured } = newer("configured");
  return { ...newer("changed"), messages, title, titled, settings, configured };
}

const MAX_TITLE = 80;

/** Returns the given title, or the beginning of the first question. */
export function titleOf({ title, messages }) {
  if (title) return title;
  const first = Object.values(messages).find(({ role, parent }) => role === "user" && parent === null);
  const text = (first?.content || first?.files?.[0]?.name || "").trim().slice(0, 4 * MAX_TITLE).replace(/\s+/g, " ");
  return (text.length > MAX_TITLE ? `${text.slice(0, MAX_TITLE)}…` : text) || "New chat";
}
