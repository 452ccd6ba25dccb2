// What stands above the message box: errors, waiting for the server, the question for a key.
import { action, h, pause } from "../dom.js";
import { call, key } from "../stream.js";

const RETRY_MS = 1000;
const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

export class Banner {
  constructor(element) {
    this.element = element;
  }

  show(...children) {
    const content = h("div", { class: "banner" }, ...children);
    this.element.replaceChildren(content);
    this.element.hidden = false;
    return content;
  }

  hide() {
    this.element.replaceChildren();
    this.element.hidden = true;
  }

  /** Says what is wrong until a person does something. */
  say(text) {
    this.show(h("span", {}, text), action("Close", () => this.hide()));
  }

  /** Says why there is no answer, or no whole one, and notices when the server is back. */
  async explain(error, { isCut, again }) {
    if (error.status === 401) return this.askKey(error.message, again);
    const isDown = error.status === 503 || error.status === 0;
    const reason = sentence(error.message);
    const text = h("span", {}, isDown ? `${reason} Waiting for the server.` : reason);
    const content = this.show(text, action(isDown ? "Try now" : "Try again", again));
    while (isDown && content.isConnected) {
      await pause(RETRY_MS);
      if (!content.isConnected || !(await call("/ready").catch(() => null))) continue;
      text.textContent = isCut ? "The server is back. The answer was cut; ask again." : `${reason} The server is back.`;
      content.classList.add("good");
      content.querySelector("button").textContent = isCut ? "Ask again" : "Try again";
      return;
    }
  }

  askKey(message, again) {
    const field = h("input", { type: "password", autocomplete: "off", required: true, "aria-label": "API key", placeholder: "API key" });
    const form = h("form", {}, field, h("button", { class: "quiet" }, "Use it"));
    form.onsubmit = (event) => {
      event.preventDefault();
      key.set(field.value.trim());
      again();
    };
    this.show(h("span", {}, `${sentence(message)} ${key.note}`), form);
    field.focus();
  }
}
