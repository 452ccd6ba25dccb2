// Steps of the engine one by one: the last ones are kept, and a person goes through them while the view is paused.
import { action, copyButton, format, h } from "../dom.js";
import { call } from "../stream.js";
import { nameOf, roundView } from "./cards.js";

const KEPT = 600; // messages
const PLACE = /^#live\/step=(\d+)$/;

const slotView = (name, ...tokens) => h("li", {}, h("span", { class: "note" }, name), h("div", { class: "tokens" }, ...tokens));

export class Rounds {
  /** `hold()` pauses the view. */
  constructor(element, hold) {
    Object.assign(this, { element, hold, messages: [], at: null });
    this.wanted = Number(PLACE.exec(location.hash)?.[1] ?? NaN);
    this.slider = h("input", { type: "range", min: 0, "aria-label": "Step" });
    this.slider.oninput = () => this.show(Number(this.slider.value));
    const go = (by) => () => this.show((this.at ?? this.messages.length - 1) + by);
    this.title = h("span", { class: "step" });
    this.list = h("ol", { class: "slots", tabindex: "0", "aria-label": "Requests of the step" });
    this.note = h("p", { class: "note" });
    const link = copyButton(() => `${location.origin}${location.pathname}#live/step=${this.current.step}`);
    link.ariaLabel = "Copy the link to this step";
    this.head = h("div", { class: "steps" }, action("‹", go(-1), { "aria-label": "Step before" }), action("›", go(1), { "aria-label": "Step after" }), this.slider, this.title, link);
    element.append(this.head, this.list, this.note);
    this.draw();
  }

  get current() {
    return this.messages[this.at ?? this.messages.length - 1];
  }

  take(message) {
    if (!message.slots) return;
    this.messages.push(message);
    if (this.messages.length > KEPT) {
      this.messages.shift();
      if (this.at !== null) this.at = Math.max(this.at - 1, 0);
    }
    if (this.at === null) this.draw();
  }

  /** Shows one of the kept messages, and pauses. */
  show(n) {
    if (!this.messages.length) return;
    this.at = Math.min(Math.max(n, 0), this.messages.length - 1);
    this.hold();
    this.draw();
  }

  /** Follows the newest again. */
  follow() {
    this.at = null;
    this.draw();
  }

  /** Shows a step that was before this page, from the server's trace. */
  async ask(step) {
    this.wanted = NaN;
    try {
      const { ms, k, slots } = await (await call(`/live/trace/${step}`)).json();
      this.note.textContent = `Step ${step}, from the trace: ${format(ms, 1)} ms, ${format(k)} drafts. Token ids:`;
      this.list.replaceChildren(
        ...slots.map(({ drafted, accepted, tokens, ...slot }) => {
          const name = `${nameOf(slot)} · accepted ${accepted} of ${drafted.length}`;
          const ids = `drafted ${drafted.join(" ") || "nothing"}; committed ${tokens.join(" ") || "nothing"}`;
          return slotView(name, ids);
        }),
      );
    } catch (error) {
      this.note.textContent = `Step ${step} was before this page was opened: ${error.message}.`;
    }
  }

  draw() {
    const message = this.current;
    this.head.hidden = !message;
    if (!message) {
      this.note.textContent = "Steps appear here while requests are answered.";
      if (!Number.isNaN(this.wanted)) this.ask(this.wanted);
      return;
    }
    const last = this.messages.length - 1;
    Object.assign(this.slider, { max: last, value: this.at ?? last });
    const { step, steps, ms, k, slots } = message;
    const name = steps > 1 ? `Steps ${step - steps + 1} to ${step}` : `Step ${step}`;
    this.title.textContent = `${name} · ${format(ms, 1)} ms${k === undefined ? "" : ` · ${format(k)} drafts`}`;
    this.slider.ariaValueText = this.title.textContent;
    this.note.textContent = "";
    if (this.at === null) return this.list.replaceChildren(); // while it runs, the cards show the texts
    this.list.replaceChildren(
      ...slots.map(({ rounds, ...slot }) => {
        const counts = rounds.map(({ accepted, rejected }) => `${accepted.length} of ${accepted.length + rejected.length}`).join(", ");
        return slotView(`${nameOf(slot)} · accepted ${counts || "–"}`, ...rounds.map(roundView));
      }),
    );
  }
}
