// Conversations in this browser's IndexedDB. A store that is forbidden or full is said once; the chat goes on in memory.
import { merged, packed, titleOf } from "./tree.js";

const NAME = "eyas";
const TALKS = "talks";
const HEADS = "heads"; // what the list shows, so that it need not read every conversation

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

const ended = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error("The transaction ended."));
  });

export class Store {
  /** `onFault` gets what is wrong with this browser's store, or "" when it works again. */
  constructor(onFault = () => {}) {
    this.onFault = onFault;
    this.fault = "";
    this.unkept = new Map(); // conversations that are in this tab only
    this.gone = new Set(); // deleted, here or in another tab: nothing may write them again
    this.database = this.open();
  }

  async open() {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore(TALKS, { keyPath: "id" });
        request.result.createObjectStore(HEADS, { keyPath: "id" });
      };
      const database = await done(request);
      database.onversionchange = () => database.close();
      return database;
    } catch (error) {
      this.tell(`This browser keeps no conversations (${error?.name ?? "no store"}): they last until this tab is closed.`);
      return null;
    }
  }

  tell(text) {
    if (text === this.fault) return;
    this.fault = text;
    this.onFault(text);
  }

  /** Returns [{ id, title, changed }] of all conversations, the newest first. */
  async list() {
    const database = await this.database;
    const stored = database ? await done(database.transaction(HEADS).objectStore(HEADS).getAll()) : [];
    const own = [...this.unkept.values()].map(headOf);
    const heads = new Map([...stored, ...own].map((head) => [head.id, head]));
    return [...heads.values()].sort((a, b) => b.changed - a.changed);
  }

  /** Returns a conversation, or undefined. */
  async read(id) {
    const database = await this.database;
    return this.unkept.get(id) ?? (database && (await done(database.transaction(TALKS).objectStore(TALKS).get(id)))) ?? undefined;
  }

  /** Keeps a conversation beside what other tabs wrote of it; returns the whole, or null if it was deleted. */
  async write(talk) {
    if (this.gone.has(talk.id)) return null;
    const database = await this.database;
    let whole = structuredClone(packed(talk));
    if (!database) {
      this.unkept.set(talk.id, whole);
      return whole;
    }
    try {
      const transaction = database.transaction([TALKS, HEADS], "readwrite");
      const over = ended(transaction);
      over.catch(() => {}); // awaited below, unless a request fails before
      const stored = await done(transaction.objectStore(TALKS).get(talk.id));
      if (stored) whole = merged(whole, stored);
      transaction.objectStore(TALKS).put(whole);
      transaction.objectStore(HEADS).put(headOf(whole));
      await over;
      this.unkept.delete(talk.id);
      if (!this.unkept.size) this.tell("");
    } catch (error) {
      this.unkept.set(talk.id, whole);
      const isFull = error?.name === "QuotaExceededError";
      const reason = isFull ? "This browser's store is full" : `This browser's store failed (${error?.name})`;
      this.tell(`${reason}: what is new lasts until this tab is closed. Export it, or delete other conversations.`);
    }
    return whole;
  }

  async remove(id) {
    this.forget(id);
    await this.change((kept) => kept.delete(id));
  }

  async clear() {
    for (const { id } of await this.list()) this.forget(id);
    await this.change((kept) => kept.clear());
  }

  /** Never writes a conversation again: it was deleted. */
  forget(id) {
    this.gone.add(id);
    this.unkept.delete(id);
  }

  async change(work) {
    const database = await this.database;
    if (!database) return;
    const transaction = database.transaction([TALKS, HEADS], "readwrite");
    const over = ended(transaction);
    for (const name of [TALKS, HEADS]) work(transaction.objectStore(name));
    await over;
    if (!this.unkept.size) this.tell("");
  }

  /** Returns the ids of conversations whose title or messages hold all words. */
  async search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = new Set();
    const look = (talk) => {
      const texts = Object.values(talk.messages).flatMap(({ content, files = [] }) => [content, ...files.map(({ name }) => name)]);
      const whole = [titleOf(talk), ...texts].join("\n").toLowerCase();
      if (words.every((word) => whole.includes(word))) found.add(talk.id);
    };
    for (const talk of this.unkept.values()) look(talk);
    const database = await this.database;
    if (!database) return found;
    const talks = database.transaction(TALKS).objectStore(TALKS);
    for (const id of await done(talks.getAllKeys())) look(await done(talks.get(id)));
    return found;
  }
}

const headOf = (talk) => ({ id: talk.id, title: titleOf(talk), changed: talk.changed });
