// Text files beside a message: read, counted in tokens where the server can count, and sent inside the message.
import { action, format, h, iconButton, readable } from "../dom.js";
import { call } from "../stream.js";

const MAX_BYTES = 2 * 2 ** 20;
const MAX_FILES = 20;
const CHARACTERS_PER_TOKEN = 4; // a guess, where the server does not count

/** Returns a message's text with its files, as the model reads it. A fence is longer than any in its file. */
export function withFiles({ content, files = [] }) {
  const parts = files.map(({ name, text }) => {
    const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
    const fence = "`".repeat(longest + 1);
    return `File: ${name.replace(/[\r\n]+/g, " ")}\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, content].filter(Boolean).join("\n\n");
}

/** Returns { count, isGuess } of the tokens of a text. */
export async function countTokens(text, model) {
  try {
    const response = await call("/tokenize", { body: { ...(model && { model }), prompt: text } });
    return { count: (await response.json()).count, isGuess: false };
  } catch {
    return { count: Math.ceil(text.length / CHARACTERS_PER_TOKEN), isGuess: true };
  }
}

/** Files that go with the next message: chosen, dropped or pasted. */
export class Files {
  /** `onFault` gets why a file was not taken; `onChange` hears of each change. */
  constructor({ list, model, onFault, onChange }) {
    Object.assign(this, { list, model, onFault, onChange, files: [] });
    this.picker = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files" });
    this.picker.onchange = () => this.take([...this.picker.files]).then(() => (this.picker.value = ""));
    list.after(this.picker);
  }

  /** Takes files and drops from an element, whatever lies on it. */
  watch(element, input) {
    const holdsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    element.addEventListener("dragover", (event) => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      element.classList.add("dropping");
    });
    for (const name of ["dragleave", "drop"]) element.addEventListener(name, () => element.classList.remove("dropping"));
    element.addEventListener("drop", (event) => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    });
    input.addEventListener("paste", (event) => {
      if (!event.clipboardData?.files.length) return;
      event.preventDefault();
      this.take([...event.clipboardData.files]);
    });
  }

  choose() {
    this.picker.click();
  }

  async take(files) {
    for (const file of files) {
      const fault = await this.read(file);
      if (fault) this.onFault(fault);
    }
  }

  /** Reads one file; returns why it was not taken, or nothing. */
  async read(file) {
    if (this.files.length >= MAX_FILES) return `More than ${MAX_FILES} files do not go with one message.`;
    if (file.size > MAX_BYTES) return `'${file.name}' is larger than ${readable(MAX_BYTES)}.`;
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch {
      return `'${file.name}' is not text in UTF-8: only texts can be attached.`;
    }
    if (text.includes("\0")) return `'${file.name}' is not a text: only texts can be attached.`;
    const entry = { name: file.name, text, tokens: null };
    this.files.push(entry);
    this.show();
    const { count, isGuess } = await countTokens(text, this.model());
    Object.assign(entry, { tokens: count, isGuess });
    this.show();
  }

  show() {
    this.list.replaceChildren(
      ...this.files.map((file) => {
        const remove = iconButton("close", `Remove ${file.name}`, () => {
          this.files = this.files.filter((one) => one !== file);
          this.show();
        });
        return h("li", { class: "chip" }, h("span", {}, file.name), h("span", { class: "note" }, sizeOf(file)), remove);
      }),
    );
    this.onChange();
  }

  /** Returns the files and forgets them. */
  give() {
    const given = this.files.map(({ name, text, tokens }) => ({ name, text, ...(tokens !== null && { tokens }) }));
    this.set([]);
    return given;
  }

  set(files) {
    this.files = files.map((file) => ({ tokens: null, ...file }));
    this.show();
  }

  get tokens() {
    return this.files.reduce((sum, { tokens }) => sum + (tokens ?? 0), 0);
  }
}

const sizeOf = ({ tokens, isGuess }) => (tokens == null ? "counting" : `${isGuess ? "about " : ""}${format(tokens)} tokens`);

/** Shows a file of a message that was sent. */
export function fileView({ name, text, tokens }) {
  const note = h("span", { class: "note" }, sizeOf({ tokens: tokens ?? Math.ceil(text.length / CHARACTERS_PER_TOKEN), isGuess: tokens == null }));
  const body = h("pre", { tabindex: "0" });
  const view = h("details", { class: "file" }, h("summary", {}, name, " ", note), body);
  view.ontoggle = () => (body.textContent = view.open ? text : "");
  return view;
}
