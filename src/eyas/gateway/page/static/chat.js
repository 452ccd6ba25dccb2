// The conversation: its messages, streamed answers, and the handling of errors.
import { Markdown } from "./markdown.js";
import { ServerError, call, events, format, h, icon, key, pause } from "./stream.js";

const $ = (id) => document.getElementById(id);
const STORE = "eyas.chat";

export class Chat {
  constructor({ settings, onRequest }) {
    this.settings = settings;
    this.onRequest = onRequest;
    this.log = $("log");
    this.input = $("input");
    this.messages = JSON.parse(sessionStorage.getItem(STORE) ?? "[]");
    this.controller = null;
    this.listen();
    this.render();
    if (matchMedia("(pointer: fine)").matches) this.input.focus();
  }

  listen() {
    $("composer").onsubmit = (event) => {
      event.preventDefault();
      if (this.controller) this.stop();
      else this.send();
    };
    this.input.onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.controller) this.send();
    };
    this.input.oninput = () => this.resize(this.input);
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    this.log.onscroll = () => ($("latest").hidden = this.atEnd());
    new ResizeObserver(this.log.onscroll).observe($("messages"));
    $("latest").onclick = () => this.toEnd();
  }

  reset() {
    this.stop();
    this.messages = [];
    this.hideBanner();
    this.save();
    this.render();
    this.input.focus();
  }

  send() {
    const text = this.input.value.trim();
    if (!text) return;
    this.input.value = "";
    this.resize(this.input);
    this.messages.push({ role: "user", content: text });
    this.answer();
  }

  stop() {
    this.controller?.abort();
  }

  /** Ask again from the last message that was not the model's. */
  regenerate() {
    if (this.controller) return;
    while (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    this.answer();
  }

  async answer() {
    const body = this.body();
    const message = { role: "assistant", content: "", reasoning: "", calls: [] };
    const controller = (this.controller = new AbortController());
    this.messages.push(message);
    this.hideBanner();
    this.render();
    this.toEnd();
    this.busy(true);
    let error = null;
    try {
      await this.receive(message, body, controller.signal);
    } catch (caught) {
      error = caught;
    }
    if (this.controller === controller) this.controller = null;
    if (!this.messages.includes(message)) return this.busy(Boolean(this.controller)); // a new chat was started meanwhile
    this.busy(false);
    this.close(message, controller.signal.aborted ? null : error, controller.signal.aborted);
  }

  /** Keep the text so far, and show how it ended. */
  close(message, error, stopped) {
    if (stopped) message.note = "Stopped.";
    else if (error) message.note = message.content || message.reasoning ? "The answer was interrupted here." : "";
    const isEmpty = !message.content && !message.reasoning && !message.calls.length;
    delete message.waiting;
    if (isEmpty && error) this.messages.pop();
    this.save();
    const stick = this.atEnd();
    if (isEmpty && error) this.render();
    else this.views.at(-1).finish(this, true);
    if (stick) this.toEnd();
    if (error) this.explain(error);
    else $("status").textContent = stopped ? "Stopped." : `Answer complete. ${statistics(message)}`;
  }

  body() {
    const { model, system, effort, temperature, max_tokens, seed, tools } = this.settings();
    const said = this.messages.filter(({ role, content, calls }) => role !== "assistant" || content || calls.length);
    return {
      ...(model && { model }),
      messages: [...(system ? [{ role: "system", content: system }] : []), ...said.map(forServer)],
      stream: true,
      stream_options: { include_usage: true },
      ...(effort && { reasoning_effort: effort }),
      ...(temperature && { temperature: Number(temperature) }),
      ...(max_tokens && { max_tokens: Number(max_tokens) }),
      ...(seed && { seed: Number(seed) }),
      ...(tools && { tools: JSON.parse(tools) }),
    };
  }

  async receive(message, body, signal) {
    const response = await call("/v1/chat/completions", { body, signal });
    let done = false;
    message.by = ["x-eyas-route", "x-eyas-backend"].map((name) => response.headers.get(name)).filter(Boolean);
    const onWaiting = (waiting) => {
      message.waiting = waiting;
      this.draw();
    };
    for await (const data of events(response, onWaiting)) {
      if (data === "[DONE]") {
        done = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw broken(chunk.error);
      if (chunk.id !== message.id) this.onRequest((message.id = chunk.id));
      apply(message, chunk);
      this.draw();
    }
    if (!done) throw new ServerError("The connection was lost.");
  }

  // -- display --------------------------------------------------------------------------------------------------------

  /** Redraw at most once a frame, however fast chunks come. */
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const stick = this.atEnd();
      this.views.at(-1)?.update();
      if (stick) this.toEnd();
    });
  }

  render() {
    $("empty").hidden = this.messages.length > 0;
    this.views = this.messages.map((message, index) => this.view(message, index === this.messages.length - 1));
    $("messages").replaceChildren(...this.views.map((view) => view.element));
  }

  view(message, isLast) {
    if (message.role === "assistant") return new Answer(message, this, isLast);
    const isLastUser = message.role === "user" && message === this.messages.findLast((one) => one.role === "user");
    const text = h("div", { class: "bubble" }, message.content);
    const label = message.role === "tool" ? "Result of a call" : "You";
    const element = h("li", { class: message.role }, h("span", { class: "unseen" }, label), text);
    if (isLastUser)
      element.append(h("div", { class: "actions" }, action("Edit", () => this.edit(message, element))));
    return { element, update() {} };
  }

  edit(message, element) {
    if (this.controller) return;
    const area = h("textarea", { "aria-label": "Edit your message", rows: 1 });
    area.value = message.content;
    const cancel = () => {
      this.render();
      this.input.focus();
    };
    const resend = () => {
      if (!area.value.trim() || this.controller) return;
      this.messages.length = this.messages.indexOf(message);
      this.messages.push({ role: "user", content: area.value.trim() });
      this.answer();
      this.input.focus();
    };
    area.oninput = () => this.resize(area);
    area.onkeydown = (event) => {
      if (event.key === "Escape") cancel();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      resend();
    };
    const actions = h("div", { class: "actions" }, action("Send again", resend), action("Cancel", cancel));
    element.replaceChildren(area, actions);
    this.resize(area);
    area.focus();
  }

  busy(on) {
    this.log.setAttribute("aria-busy", on);
    const label = on ? "Stop" : "Send";
    $("send").replaceChildren(icon(on ? "i-stop" : "i-send"));
    $("send").ariaLabel = $("send").title = label;
    if (on) $("status").textContent = "Answering.";
  }

  resize(area) {
    area.style.height = "auto";
    const borders = area.offsetHeight - area.clientHeight;
    area.style.height = `${Math.min(area.scrollHeight + borders, innerHeight * 0.4)}px`;
  }

  atEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  save() {
    try {
      sessionStorage.setItem(STORE, JSON.stringify(this.messages));
    } catch {
      sessionStorage.removeItem(STORE); // too long to store: the tab still has it
    }
  }

  // -- errors ---------------------------------------------------------------------------------------------------------

  async explain(error) {
    if (error.status === 401) return this.askKey(error.message);
    const isDown = error.status === 503 || error.status === 0;
    const reason = sentence(error.message);
    const text = h("span", {}, isDown ? `${reason} Waiting for the server.` : reason);
    const banner = this.showBanner(text, action(isDown ? "Try now" : "Try again", () => this.regenerate()));
    while (isDown && banner.isConnected) {
      await pause(1000);
      if (!banner.isConnected || !(await call("/ready").catch(() => null))) continue;
      text.textContent = `${reason} The server is back.`;
      banner.classList.add("good");
      banner.querySelector("button").textContent = "Try again";
      return;
    }
  }

  askKey(message) {
    const label = { "aria-label": "API key", placeholder: "API key" };
    const field = h("input", { type: "password", autocomplete: "off", required: true, ...label });
    const form = h("form", {}, field, h("button", { class: "quiet" }, "Use it"));
    form.onsubmit = (event) => {
      event.preventDefault();
      key.set(field.value.trim());
      this.regenerate();
      this.input.focus();
    };
    this.showBanner(h("span", {}, `${sentence(message)} ${key.note}`), form);
    field.focus();
  }

  showBanner(...children) {
    const content = h("div", { class: "banner" }, ...children);
    $("banner").replaceChildren(content);
    $("banner").hidden = false;
    return content;
  }

  hideBanner() {
    $("banner").replaceChildren();
    $("banner").hidden = true;
  }
}

const broken = ({ message, type }) => new ServerError(message, type === "invalid_request_error" ? 400 : 503);
const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
const action = (label, onclick) => h("button", { type: "button", class: "quiet", onclick }, label);

/** Converts a message for the server. Reasoning is sent back with calls only: the model needs it until their results. */
function forServer({ role, content, reasoning, calls, id }) {
  if (role === "tool") return { role, content, tool_call_id: id };
  if (!calls?.length) return { role, content };
  const tool_calls = calls.map((one) => ({
    id: one.id,
    type: "function",
    function: { name: one.name, arguments: one.arguments },
  }));
  return { role, content: content || null, ...(reasoning && { reasoning_content: reasoning }), tool_calls };
}

/** Add a chunk to a message. */
function apply(message, { choices, usage, timings, metrics }) {
  const { delta = {}, finish_reason } = choices?.[0] ?? {};
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    const one = (message.calls[index] ??= { id: "", name: "", arguments: "" });
    one.id ||= id ?? "";
    one.name ||= part?.name ?? "";
    one.arguments += part?.arguments ?? "";
  }
  if (finish_reason) message.finish = finish_reason;
  if (timings) message.timings = timings;
  if (usage) message.usage = usage;
  if (metrics?.speculative_decoding) message.speculation = metrics.speculative_decoding;
}

const STATES = { queued: "In the queue", loading: "The model is being loaded", reading: "The model reads the prompt" };
/** "In the queue: number 3, about 40 s" */
function waitingText({ state, position, eta_s }) {
  const parts = [position && `number ${format(position)}`, eta_s > 0 && `about ${format(Math.ceil(eta_s))} s`];
  const detail = parts.filter(Boolean).join(", ");
  return (STATES[state] ?? "Waiting") + (detail && `: ${detail}`);
}

/** "142 tokens · 87.3 tokens/s · …"; behind a router first its route and backend. */
function statistics({ timings, usage, speculation, by = [] }) {
  if (!timings) return by.join(" · ");
  const { predicted_n: count, predicted_per_second: speed, draft_n: drafted, draft_n_accepted: accepted } = timings;
  const parts = [...by, `${format(usage?.completion_tokens ?? count)} tokens`];
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

/** One answer of the model, while it streams and after. */
class Answer {
  constructor(message, chat, isLast) {
    this.message = message;
    this.isOpen = isLast && chat.controller !== null;
    this.gist = h("bdi", { dir: "ltr" });
    this.thought = h("span", {}, "Thinking");
    this.reasoning = h("div", { class: "reasoning-text" });
    const summary = h("summary", {}, this.thought, h("span", { class: "gist" }, this.gist));
    this.details = h("details", { class: "reasoning", hidden: true }, summary, this.reasoning);
    this.calls = h("div", { class: "calls" });
    this.content = new Markdown(h("div", { class: "text" }));
    const name = h("span", { class: "unseen" }, "The model");
    this.element = h("li", { class: "assistant" }, name, this.details, this.content.element, this.calls);
    if (!this.isOpen) return this.finish(chat, isLast);
    this.why = h("span", { class: "unseen" }, "Waiting for the answer");
    this.wait = h("p", { class: "wait" }, this.why);
    this.element.append(this.wait);
  }

  update() {
    const { content, reasoning, calls } = this.message;
    const isThinking = this.isOpen && !content && !calls.length;
    if (this.wait && this.message.waiting) {
      this.why.textContent = waitingText(this.message.waiting);
      this.why.className = "note";
    }
    if (this.wait) this.wait.hidden = Boolean(content || reasoning || calls.length);
    this.details.hidden = !reasoning;
    this.thought.textContent = isThinking ? "Thinking" : "Thoughts";
    this.gist.textContent = isThinking ? reasoning.slice(-160).replace(/\s+/g, " ") : "";
    this.reasoning.textContent = reasoning;
    this.content.set(content);
    this.content.element.classList.toggle("growing", this.isOpen && Boolean(content));
    this.calls.replaceChildren(...calls.filter(Boolean).map(callView));
  }

  finish(chat, isLast) {
    this.isOpen = false;
    this.wait?.remove();
    this.update();
    const { finish, content, calls } = this.message;
    const note = this.message.note || (finish === "length" && "Cut off: the token limit is reached.");
    if (note) this.element.append(h("p", { class: "note" }, note));
    if (isLast && finish === "tool_calls") this.element.append(resultForm(calls, chat));
    const actions = h("div", { class: "actions" });
    if (content) actions.append(action("Copy", () => navigator.clipboard.writeText(content)));
    if (isLast) actions.append(action("Regenerate", () => chat.regenerate()));
    const numbers = statistics(this.message);
    if (numbers) actions.append(h("span", { class: "stats" }, numbers));
    this.element.append(actions);
  }
}

function callView({ name, arguments: text }) {
  let pretty = text;
  try {
    pretty = JSON.stringify(JSON.parse(text), null, 2);
  } catch {} // still incomplete, or not JSON: shown unchanged
  const head = h("div", { class: "code-head" }, h("span", {}, "calls ", h("b", {}, name)));
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
    calls.forEach(({ id }, n) => chat.messages.push({ role: "tool", id, content: areas[n].value }));
    chat.answer();
  };
  return form;
}
