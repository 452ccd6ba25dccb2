// A block of code: its language, Copy, and colours by line. A growing block only gets new lines.
import { copyButton, h } from "../dom.js";
import { highlight, modeOf } from "./highlight.js";

const MAX_LINE = 1000; // characters; a longer line, and what follows MAX_LINES, has no colours
const MAX_LINES = 10_000;

export class CodeView {
  constructor(name) {
    this.lines = []; // { text, element, before, after }: states of the mode
    this.code = h("code");
    const copy = copyButton(() => this.lines.map(({ text }) => text).join("\n"));
    this.element = h(
      "div",
      { class: "code" },
      h("div", { class: "code-head" }, h("span", {}, name || "text"), copy),
      h("pre", { tabindex: "0" }, this.code),
    );
    this.colour(name);
  }

  async colour(name) {
    this.mode = await modeOf(name).catch(() => null); // no colours while the server is away
    if (!this.mode) return;
    const texts = this.lines.map(({ text }) => text);
    this.lines = [];
    this.code.replaceChildren();
    this.set(texts);
  }

  set(texts) {
    let state = null;
    const fresh = document.createDocumentFragment();
    texts.forEach((text, n) => {
      const old = this.lines[n];
      if (old?.text !== text || old.before !== state) {
        const { parts, after } = this.read(text, n, state);
        const element = h("span", {}, ...parts.map(([kind, part]) => (kind ? h("span", { class: `t-${kind}` }, part) : part)), "\n");
        if (old) old.element.replaceWith(element);
        else fresh.append(element);
        this.lines[n] = { text, element, before: state, after };
      }
      state = this.lines[n].after;
    });
    for (const { element } of this.lines.splice(texts.length)) element.remove();
    this.code.append(fresh);
  }

  /** Returns the coloured parts of a line, and the mode's state after it. */
  read(text, n, state) {
    if (!this.mode || text.length > MAX_LINE || n > MAX_LINES) return { parts: [["", text]], after: state };
    return highlight(text, this.mode, state);
  }
}
