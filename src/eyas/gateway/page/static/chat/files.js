// Text files beside a message: read, counted in tokens where the server can count, and sent inside the message.
import { filePicker, format, h, iconButton, readable, textOf } from "../dom.js";
import { call } from "../stream.js";

const MAX_BYTES = 2 * 2 ** 20;
const MAX_FILES = 20;

/** Returns about how many tokens a text has. */
export const guess = (text) => Math.ceil(text.length / 4);

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
async function countTokens(text, model) {
  try {
    const response = await call("/tokenize", { body: { ...(model && { model }), prompt: text } });
    return { count: (await response.json()).count, isGuess: false };
  } catch {
    return { count: guess(text), isGuess: true };
  }
}

/** Files that go with the next message: chosen, dropped or pasted. */
export class Files {
  /** `onFault` gets why a file was not taken; `onChange` hears of each change. */
  constructor({ list, model, onFault, onChange }) {
    Object.assign(this, { list, model, onFault, onChange, files: [] });
    this.picker = filePicker((chosen) => this.take(chosen), { "aria-label": "Files" });
    list.after(this.picker);
  }

  /** Takes files that are dropped on an element, or pasted into an input. */
  watch(element, input) {
    const take = (event, files) => {
      element.classList.remove("dropping");
      if (!files?.length) return;
      event.preventDefault();
      this.take([...files]);
    };
    element.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      element.classList.add("dropping");
    });
    element.addEventListener("dragleave", (event) => take(event));
    element.addEventListener("drop", (event) => take(event, event.dataTransfer?.files));
    input.addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData;
      // Office programs add a picture of the text that was copied.
      if (!types.includes("text/plain") || [...files].some(({ type }) => !type.startsWith("image/"))) take(event, files);
    });
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
    const text = await textOf(file);
    if (text === null) return `'${file.name}' is not text in UTF-8: only texts can be attached.`;
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
    this.clear();
    return given;
  }

  clear() {
    this.files = [];
    this.show();
  }

  get tokens() {
    return this.files.reduce((sum, { tokens }) => sum + (tokens ?? 0), 0);
  }
}

const sizeOf = ({ tokens, isGuess }) => (tokens == null ? "counting" : `${isGuess ? "about " : ""}${format(tokens)} tokens`);

/** Shows a file of a message that was sent. */
export function fileView({ name, text, tokens }) {
  const note = h("span", { class: "note" }, sizeOf({ tokens: tokens ?? guess(text), isGuess: tokens == null }));
  const body = h("pre", { tabindex: "0" });
  const view = h("details", { class: "file" }, h("summary", {}, name, " ", note), body);
  view.ontoggle = () => (body.textContent = view.open ? text : "");
  return view;
}
