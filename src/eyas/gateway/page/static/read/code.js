// A block of code: its language, Copy, and colours by line. A growing block only gets new lines.
import { copyButton, h } from "../dom.js";
import { highlight, languageOf } from "./highlight.js";

const MAX_LINE = 2000; // characters; a longer line, and what follows MAX_LINES, has no colours
const MAX_LINES = 10_000;

export class CodeView {
  constructor(name) {
    this.language = languageOf(name);
    this.lines = []; // { text, element, before, after }: states of the highlighter
    this.code = h("code");
    const copy = copyButton(() => this.lines.map(({ text }) => text).join("\n"));
    this.element = h(
      "div",
      { class: "code" },
      h("div", { class: "code-head" }, h("span", {}, name || "text"), copy),
      h("pre", { tabindex: "0" }, this.code),
    );
  }

  set(texts) {
    let state = null;
    const fresh = document.createDocumentFragment();
    texts.forEach((text, n) => {
      const old = this.lines[n];
      if (old?.text !== text || old.before !== state) {
        const { element, after } = this.line(text, n, state);
        if (old) old.element.replaceWith(element);
        else fresh.append(element);
        this.lines[n] = { text, element, before: state, after };
      }
      state = this.lines[n].after;
    });
    for (const { element } of this.lines.splice(texts.length)) element.remove();
    this.code.append(fresh);
  }

  line(text, n, state) {
    const isPlain = !this.language || text.length > MAX_LINE || n > MAX_LINES;
    const { parts, after } = isPlain ? { parts: [["", text]], after: state } : highlight(text, this.language, state);
    const element = h("span", {}, ...parts.map(([kind, part]) => (kind ? h("span", { class: `t-${kind}` }, part) : part)), "\n");
    return { element, after };
  }
}
