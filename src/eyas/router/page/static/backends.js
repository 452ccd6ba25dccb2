// Backends and events, from the router's feed: one JSON message for each change.
import { call, events, format, h, key, pause } from "./stream.js";

const $ = (id) => document.getElementById(id);
const MAX_EVENTS = 200;
const RETRY_MS = 1000;

export class Backends {
  constructor({ onStatus }) {
    this.onStatus = onStatus;
    this.cards = new Map();
    this.seen = new Set(); // events that came already: a new connection brings the newest once more
    this.controller = null;
    this.canControl = false;
  }

  /** Opens the feed while the view is visible. */
  follow(isSeen) {
    if (isSeen && !this.controller) this.run((this.controller = new AbortController()));
    if (!isSeen) {
      this.controller?.abort();
      this.controller = null;
    }
  }

  /** Asks again at once, with a new key. */
  retry() {
    if (!this.controller) return;
    this.follow(false);
    this.follow(true);
  }

  async run({ signal }) {
    while (!signal.aborted) {
      try {
        const response = await call("/router/events", { signal });
        this.note();
        for await (const data of events(response)) this.take(data);
        if (!signal.aborted) this.note("The connection to the router was lost. Trying again.");
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401) return this.askKey(error.message);
        this.note(`${error.message} Trying again.`);
      }
      for (const card of this.cards.values()) card.fade();
      await pause(RETRY_MS);
    }
  }

  take(data) {
    const { status, event, lost } = JSON.parse(data);
    if (status) this.show(status);
    if (event && !this.seen.has(data)) {
      this.seen.add(data);
      if (this.seen.size > MAX_EVENTS) this.seen.delete(this.seen.values().next().value);
      this.add(eventLine(event));
    }
    if (lost) this.add(h("li", {}, h("span", { class: "what" }, `${format(lost)} more events were left out`)));
  }

  show(status) {
    const { backends, models, can_control } = status;
    this.canControl = can_control;
    const count = (test) => backends.filter(test).length;
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    $("ready").textContent = `${count(isAvailable)} of ${backends.length}`;
    $("in-flight").textContent = format(sum(backends.map(({ in_flight }) => in_flight)));
    $("waiting").textContent = format(sum(models.map(({ queued }) => queued)));
    $("control-note").textContent = can_control
      ? ""
      : "To start and stop backends here, give the router an API key: api_key under server in its file.";
    for (const one of backends) {
      if (!this.cards.has(one.name)) {
        this.cards.set(one.name, new Card(this));
        $("backends").append(this.cards.get(one.name).element);
      }
      const names = models.filter((model) => model.backends.includes(one.name)).map(({ name }) => name);
      this.cards.get(one.name).update(one, names, can_control);
    }
    this.onStatus(status);
  }

  add(line) {
    const list = $("events");
    list.prepend(line);
    while (list.children.length > MAX_EVENTS) list.lastChild.remove();
    $("no-events").hidden = true;
  }

  /** Starts or stops a backend; what becomes of it comes as events. */
  async order(name, verb) {
    this.note();
    try {
      await call(`/router/backends/${encodeURIComponent(name)}/${verb}`, { method: "POST" });
    } catch (error) {
      if (error.status === 401) this.askKey(error.message);
      else this.note(error.message);
    }
  }

  async confirmStop({ name, in_flight, plan }) {
    const dialog = $("confirm");
    const running = in_flight ? `${format(in_flight)} of its answers are not complete. ` : "";
    $("confirm-title").textContent = `Stop ${name}?`;
    $("confirm-text").textContent = running + (plan ? "Its engine ends." : "It gets no requests until it is started.");
    dialog.returnValue = "";
    dialog.onclose = () => dialog.returnValue === "stop" && this.order(name, "stop");
    dialog.showModal();
  }

  note(...children) {
    $("live-note").replaceChildren(...children);
    $("live-note").hidden = !children.length;
  }

  askKey(message) {
    const label = { "aria-label": "API key", placeholder: "API key" };
    const field = h("input", { type: "password", autocomplete: "off", required: true, ...label });
    const form = h("form", {}, field, h("button", { class: "quiet" }, "Use it"));
    form.onsubmit = (event) => {
      event.preventDefault();
      this.note();
      key.set(field.value.trim());
    };
    this.note(h("p", {}, `${message}. ${key.note}`), form);
  }
}

const isAvailable = ({ state, breaker }) => state === "ready" && breaker !== "open";

/** One backend; its elements stay, so that the keyboard's focus does. */
class Card {
  constructor(backends) {
    this.name = h("h3", {});
    this.state = h("span", { class: "state" });
    this.breaker = h("span", { class: "state", hidden: true });
    this.button = h("button", { type: "button", class: "quiet", hidden: true });
    this.about = h("p", { class: "note" });
    this.bar = h("div", { class: "bar", role: "img" });
    this.load = h("span", { class: "load" });
    this.reason = h("p", { class: "reason", hidden: true });
    const head = h("div", { class: "card-head" }, this.name, this.state, this.breaker, this.button);
    this.element = h("article", { class: "card backend" }, head, this.about, h("div", { class: "use" }, this.bar, this.load), this.reason);
    this.button.onclick = () => {
      if (this.verb === "stop") backends.confirmStop(this.status);
      else backends.order(this.status.name, "start");
    };
  }

  update(one, models, canControl) {
    this.status = one;
    this.element.classList.remove("faded");
    this.element.dataset.backend = one.name;
    this.name.textContent = one.name;
    this.state.textContent = one.state + (one.eta_s ? `, about ${format(one.eta_s)} s` : "");
    this.state.dataset.state = one.state;
    this.breaker.hidden = one.breaker === "closed";
    this.breaker.textContent = `breaker ${one.breaker}` + (one.open_s ? `, ${format(one.open_s)} s` : "");
    this.breaker.dataset.state = one.breaker;
    const parts = [one.is_ours ? `${one.model}, eyas` : one.model, one.url ?? `plan ${one.plan}`];
    if (one.role !== "text") parts.push(one.role);
    if (one.twin_of) parts.push(`twin of ${one.twin_of}, without speculation`);
    if (models.length) parts.push(`serves ${models.join(", ")}`);
    this.about.textContent = parts.filter(Boolean).join(" · ");
    this.bar.style.setProperty("--share", Math.min(1, one.in_flight / one.concurrency));
    this.load.textContent = `${format(one.in_flight)} of ${format(one.concurrency)}`;
    this.bar.ariaLabel = `${this.load.textContent} requests at once`;
    const inRow = one.failures ? `${format(one.failures)} failure${one.failures > 1 ? "s" : ""} in a row` : "";
    const reason = [one.state === "ready" ? "" : one.reason, inRow].filter(Boolean).join(" · ");
    this.reason.textContent = reason;
    this.reason.hidden = !reason;
    this.verb = one.state === "out" ? "start" : "stop";
    this.button.hidden = !canControl;
    this.button.textContent = this.verb === "start" ? "Start" : "Stop";
    this.button.ariaLabel = `${this.button.textContent} ${one.name}`;
  }

  /** What it shows may be old: there is no connection. */
  fade() {
    this.element.classList.add("faded");
  }
}

const BAD = new Set(["failed", "refused", "degenerate", "loops"]);

function eventLine({ time_s, kind, backend, model, text, failure, breaker, condition, status, seconds }) {
  const isBad = BAD.has(kind) || breaker === "open" || condition === "out";
  const isGood = breaker === "closed" || condition === "ready";
  const what = {
    failed: `failed: ${failure}`,
    full: "full",
    refused: `refused: ${status}`,
    degenerate: `loop: ${failure}`,
    breaker: `breaker ${breaker}`,
    condition: condition,
    loops: "repeats one symbol",
  }[kind];
  const after = kind === "failed" && seconds != null ? ` after ${format(seconds, 1)} s` : "";
  const time = new Date(time_s * 1000);
  const state = `${breaker ?? condition}: `; // which the text begins with, for logs
  const more = text?.startsWith(state) ? text.slice(state.length) : text === (breaker ?? condition) ? "" : text;
  return h(
    "li",
    { class: isBad ? "bad" : isGood ? "good" : "" },
    h("time", { datetime: time.toISOString() }, time.toLocaleTimeString("en-GB")),
    h("b", {}, backend ?? model ?? ""),
    h("span", { class: "what" }, what + after),
    h("span", { class: "text" }, more ?? ""),
  );
}
