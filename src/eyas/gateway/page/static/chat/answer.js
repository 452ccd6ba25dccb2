// The views of messages: questions with their files, answers while they stream and after, calls and their results.
import { action, copyButton, format, h, onEnter } from "../dom.js";
import { Markdown } from "../read/markdown.js";
import { fileView } from "./files.js";

const BEAT_S = 5; // an answer of another tab that was not kept for longer has ended with that tab

/** Returns the view of a message: { element }, and of an answer { update(), finish() }. */
export const messageView = (message, ...rest) => new (message.role === "assistant" ? Answer : Question)(message, ...rest);

/** Returns a button that is hidden while an answer comes. */
const asking = (label, onclick) => action(label, onclick, { class: "quiet asks" });

/** Buttons between the versions of a message. */
function versions({ ids, n }, chat) {
  if (ids.length < 2) return [];
  const to = (label, sign, other) => action(sign, () => chat.show(ids[other]), { "aria-label": label, disabled: other < 0 || other >= ids.length });
  const text = h("span", { class: "note" }, `${n + 1} of ${ids.length}`);
  return [h("span", { class: "versions asks" }, to("Version before", "‹", n - 1), text, to("Version after", "›", n + 1))];
}

/** A message of a person, or the result of a call. */
class Question {
  constructor(message, chat, { versions: place }) {
    this.message = message;
    this.chat = chat;
    const { role, content, files = [] } = message;
    const label = role === "tool" ? "Result of a call" : "You";
    const parts = [...files.map(fileView), content && h("div", { class: "bubble" }, content)].filter(Boolean);
    const actions = h("div", { class: "actions" }, ...versions(place, chat));
    if (role === "user") actions.append(asking("Edit", () => this.edit()));
    this.element = h("li", { class: role }, h("span", { class: "unseen" }, label), ...parts, actions);
  }

  edit() {
    const { chat, message } = this;
    if (chat.controller) return;
    const area = h("textarea", { "aria-label": "Edit your message", rows: 1 });
    area.value = message.content;
    const cancel = () => {
      chat.render({ isWhole: true });
      chat.composer.focus();
    };
    const resend = () => {
      if ((area.value.trim() || message.files?.length) && !chat.controller) chat.branch(message, area.value.trim());
    };
    area.oninput = () => resize(area);
    area.onkeydown = ({ key }) => {
      if (key === "Escape") cancel();
    };
    onEnter(area, resend);
    const actions = h("div", { class: "actions" }, asking("Send again", resend), action("Cancel", cancel));
    this.element.replaceChildren(...(message.files ?? []).map(fileView), area, actions);
    resize(area);
    area.focus();
  }
}

export function resize(area) {
  area.style.height = "auto";
  const borders = area.offsetHeight - area.clientHeight;
  area.style.height = `${Math.min(area.scrollHeight + borders, innerHeight * 0.4)}px`;
}

/** One answer of the model. */
class Answer {
  constructor(message, chat, { isLast, versions: place }) {
    Object.assign(this, { message, chat, isLast, place });
    this.isOpen = chat.answering === message;
    this.gist = h("bdi", { dir: "ltr" });
    this.thought = h("span", {}, "Thinking");
    this.reasoning = h("div", { class: "reasoning-text" });
    const summary = h("summary", {}, this.thought, h("span", { class: "gist" }, this.gist));
    this.details = h("details", { class: "reasoning", hidden: true }, summary, this.reasoning);
    this.calls = h("div", { class: "calls" });
    this.content = new Markdown(h("div", { class: "text" }));
    const name = h("span", { class: "unseen" }, "The model");
    this.element = h("li", { class: "assistant" }, name, this.details, this.content.element, this.calls);
    if (!this.isOpen) return this.finish();
    this.why = h("span", { class: "unseen" }, "Waiting for the answer");
    this.wait = h("p", { class: "wait" }, this.why);
    this.element.append(this.wait);
  }

  update() {
    const { content, reasoning, calls } = this.message;
    const isThinking = this.isOpen && !content && !calls?.length;
    if (this.wait && this.message.waiting) {
      this.why.textContent = waitingText(this.message.waiting);
      this.why.className = "note";
    }
    if (this.wait) this.wait.hidden = Boolean(content || reasoning || calls?.length);
    this.details.hidden = !reasoning;
    this.thought.textContent = isThinking ? "Thinking" : "Thoughts";
    this.gist.textContent = isThinking ? reasoning.slice(-160).replace(/\s+/g, " ") : "";
    this.showReasoning(reasoning ?? "");
    this.content.set(content);
    this.mark(this.isOpen && content ? this.content.element.lastElementChild : null);
    this.calls.replaceChildren(...(calls ?? []).filter(Boolean).map(callView));
  }

  /** Marks the block that grows. A class of the whole text would have every element in it styled again at the end. */
  mark(block) {
    if (block === this.marked) return;
    this.marked?.classList.remove("growing");
    block?.classList.add("growing");
    this.marked = block;
  }

  /** Appends what is new: a text node of thoughts is not laid out again as a whole for each token. */
  showReasoning(text) {
    const shown = this.shown ?? 0;
    if (text.length < shown) this.reasoning.replaceChildren(text);
    else if (text.length > shown) this.reasoning.append(text.slice(shown));
    this.shown = text.length;
  }

  finish() {
    this.isOpen = false;
    this.wait?.remove();
    this.update();
    const { message, chat, isLast } = this;
    const { content, finish, calls } = message;
    const note = noteOf(message, chat);
    if (note) this.element.append(h("p", { class: "note" }, note));
    if (isLast && finish === "tool_calls") this.element.append(resultForm(calls, chat));
    const actions = h("div", { class: "actions" }, ...versions(this.place, chat));
    if (content) actions.append(copyButton(() => content));
    if (isLast) actions.append(asking(isCut(message) ? "Ask again" : "Regenerate", () => chat.regenerate()));
    const numbers = statistics(message);
    if (numbers) actions.append(h("span", { class: "stats" }, numbers));
    this.element.append(actions);
  }
}

const isCut = ({ finish }) => !finish || finish === "cut";

/** Whether another tab still receives an answer. */
export const isElsewhere = ({ finish, tab, beat = 0 }, own) => !finish && tab !== own && Date.now() - beat < BEAT_S * 1000;

function noteOf(message, chat) {
  if (message.finish === "stopped") return "Stopped.";
  if (message.finish === "length") return "Cut off: the token limit is reached.";
  if (isElsewhere(message, chat.tabs.name)) return "Being answered in another tab.";
  return isCut(message) ? "The answer was cut; ask again." : "";
}

const STATES = { queued: "In the queue", loading: "The model is being loaded", reading: "The model reads the prompt" };
/** "In the queue: number 3, about 40 s" */
function waitingText({ state, position, eta_s }) {
  const parts = [position && `number ${format(position)}`, eta_s > 0 && `about ${format(Math.ceil(eta_s))} s`];
  const detail = parts.filter(Boolean).join(", ");
  return (STATES[state] ?? "Waiting") + (detail && `: ${detail}`);
}

/** "142 tokens · 87.3 tokens/s · …"; behind a router first its route and backend. */
export function statistics({ timings, usage, speculation, by }) {
  if (!timings) return (by ?? []).join(" · ");
  const { predicted_n: count = 0, predicted_per_second: speed, draft_n: drafted, draft_n_accepted: accepted = 0 } = timings;
  const parts = [...(by ?? []), `${format(usage?.completion_tokens ?? count)} tokens`];
  if (speed) parts.push(`${format(speed, 1)} tokens/s`);
  if (drafted) {
    // Each round yields its accepted drafts and one token of the model's own; the first token comes from prefill.
    const rounds = count - 1 - accepted;
    const length = speculation?.mean_acceptance_length ?? (rounds > 0 ? (count - 1) / rounds : null);
    if (length) parts.push(`acceptance length ${format(length, 2)}`);
    parts.push(`${format(accepted)} of ${format(drafted)} drafts accepted`);
  }
  return parts.join(" · ");
}

function callView({ name, arguments: text }) {
  let pretty = text ?? "";
  try {
    pretty = JSON.stringify(JSON.parse(text), null, 2);
  } catch {} // still incomplete, or not JSON: shown unchanged
  const head = h("div", { class: "code-head" }, h("span", {}, "calls ", h("b", {}, name ?? "")));
  return h("div", { class: "code" }, head, h("pre", { tabindex: "0" }, h("code", {}, pretty)));
}

/** The form for the results of calls. */
function resultForm(calls, chat) {
  const areas = calls.map(({ name }) => {
    const label = `Result of ${name}`;
    return h("textarea", { rows: 2, required: true, "aria-label": label, placeholder: label });
  });
  const form = h("form", { class: "results" }, ...areas, h("button", { class: "quiet" }, "Send results"));
  form.onsubmit = (event) => {
    event.preventDefault();
    chat.results(calls.map(({ id }, n) => ({ role: "tool", call: id, content: areas[n].value })));
  };
  return form;
}
