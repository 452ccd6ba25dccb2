// Backends and events, from the router's feed: one JSON message for each change.
import { Events } from "./events.js";
import { Memory, Owners, readable } from "./memory.js";
import { format, h, pause } from "./dom.js";
import { call, events, key } from "./stream.js";

const $ = (id) => document.getElementById(id);
const RETRY_MS = 1000;

export class Backends {
  constructor({ onStatus }) {
    this.onStatus = onStatus;
    this.cards = new Map();
    this.owners = new Owners();
    this.memory = new Memory($("pools"), this.owners);
    this.events = new Events($("events"), $("no-events"));
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
      this.memory.fade();
      await pause(RETRY_MS);
    }
  }

  take(data) {
    const { status, event, lost } = JSON.parse(data);
    if (status) this.show(status);
    if (event) this.events.add(event);
    if (lost) this.events.lost(lost);
  }

  show(status) {
    const { backends, models, pools, can_control } = status;
    const members = new Map(pools.flatMap((pool) => pool.members).map((one) => [one.backend, one]));
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
      this.cards.get(one.name).update(one, names, members.get(one.name), can_control);
    }
    this.memory.show(pools);
    this.onStatus(status);
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

  /** Asks before a backend is stopped, or unloaded inside its answers or although it is pinned. */
  confirm(verb, { name, in_flight, plan, pool }, isPinned) {
    if (verb !== "stop" && !(verb === "unload" && (in_flight || isPinned))) return this.order(name, verb);
    const ends = pool ? "Its engine ends, and it is not loaded again until a person does that." : "Its engine ends.";
    const then = {
      stop: plan ? ends : "It gets no requests until it is started.",
      unload: [in_flight && "They have a while to end, then they are cut.", isPinned && "It is pinned."].filter(Boolean).join(" "),
    }[verb];
    const running = in_flight ? `${format(in_flight)} of its answers ${in_flight > 1 ? "are" : "is"} not complete. ` : "";
    const dialog = $("confirm");
    $("confirm-title").textContent = `${LABELS[verb]} ${name}?`;
    $("confirm-text").textContent = running + then;
    $("confirm-yes").textContent = `${LABELS[verb]} it`;
    $("confirm-yes").value = verb;
    dialog.returnValue = "";
    dialog.onclose = () => dialog.returnValue === verb && this.order(name, verb);
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

const LABELS = { start: "Start", stop: "Stop", load: "Load", unload: "Unload", pin: "Pin", unpin: "Unpin" };
const TITLES = {
  stop: "Its engine ends, and no request loads it",
  load: "Others are unloaded where it needs their memory",
  unload: "Its engine ends; the next request loads it again",
  pin: "Not to be unloaded for others",
  unpin: "May be unloaded for others",
};
// By the state of its memory: one that failed its canary is out, and still loaded.
const LOADING = { idle: "load", out: "load", loading: "unload", ready: "unload" };

/** Returns what a person may order, by place of the buttons; null where there is none. */
function ordersFor({ state, cause }, member) {
  if (!member) return [null, null, state === "out" ? "start" : "stop"];
  return [LOADING[member.state] ?? null, member.is_pinned ? "unpin" : "pin", cause === "stopped" ? null : "stop"];
}

/** Returns what a backend takes of its pool, and what that means for others. */
function describe({ steady, declared, is_learnt, is_pinned, is_exclusive, priority }) {
  const isLarger = is_learnt && declared && steady > 1.05 * declared;
  const takes = `takes ${readable(steady)}, ${is_learnt ? "learnt" : "declared"}${isLarger ? ` (${readable(declared)} declared)` : ""}`;
  const rank = priority === "normal" ? "" : `${priority} priority`;
  return [takes, is_pinned && "pinned", is_exclusive && "exclusive", rank].filter(Boolean).join(" · ");
}

const isAvailable = ({ state, breaker }) => state === "ready" && breaker !== "open";

/** One backend; its elements stay, so that the keyboard's focus does. */
class Card {
  constructor(backends) {
    this.owners = backends.owners;
    this.swatch = h("i", { class: "swatch", hidden: true });
    this.name = h("span", {});
    this.state = h("span", { class: "state" });
    this.breaker = h("span", { class: "state", hidden: true });
    this.buttons = [0, 1, 2].map(() => h("button", { type: "button", class: "quiet", hidden: true }));
    this.about = h("p", { class: "note" });
    this.takes = h("p", { class: "note", hidden: true });
    this.bar = h("div", { class: "bar", role: "img" });
    this.load = h("span", { class: "load" });
    this.reason = h("p", { class: "reason", hidden: true });
    const head = h("div", { class: "card-head" }, h("h3", {}, this.swatch, this.name), this.state, this.breaker, h("div", { class: "orders" }, ...this.buttons));
    this.element = h("article", { class: "card backend" }, head, this.about, this.takes, h("div", { class: "use" }, this.bar, this.load), this.reason);
    this.buttons.forEach((button, place) => {
      button.onclick = () => backends.confirm(this.verbs[place], this.status, this.isPinned);
    });
  }

  update(one, models, member, canControl) {
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
    this.reason.dataset.state = one.state;
    this.takes.hidden = this.swatch.hidden = !member;
    if (member) {
      this.owners.paint(this.swatch, one.name);
      this.takes.textContent = describe(member);
    }
    this.verbs = ordersFor(one, member);
    this.isPinned = Boolean(member?.is_pinned);
    this.buttons.forEach((button, place) => {
      const verb = this.verbs[place];
      button.hidden = !canControl || !verb;
      button.textContent = LABELS[verb] ?? "";
      button.title = (member && TITLES[verb]) ?? "";
      button.ariaLabel = `${button.textContent} ${one.name}`;
    });
  }

  /** What it shows may be old: there is no connection. */
  fade() {
    this.element.classList.add("faded");
  }
}
