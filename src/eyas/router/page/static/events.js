// The list of events from the router's feed, newest first, without what says the same twice.
import { format, h } from "./dom.js";

const MAX_EVENTS = 200;
const BAD = new Set(["failed", "refused", "degenerate", "loops"]);
const BAD_OF_MEMORY = new Set(["late", "larger", "unknown", "refused"]);
const MEMORY = {
  pressure: "pressure",
  load: "load",
  unload: "unload",
  unloaded: "memory is back",
  late: "memory is late",
  larger: "larger than declared",
  unknown: "memory unknown",
  refused: "no room",
};

export class Events {
  constructor(list, empty) {
    this.list = list;
    this.empty = empty;
    this.seen = new Set(); // a new connection brings the newest once more
    this.newest = null;
  }

  add(event) {
    const mark = JSON.stringify(event);
    if (this.seen.has(mark)) return;
    this.seen.add(mark);
    if (this.seen.size > MAX_EVENTS) this.seen.delete(this.seen.values().next().value);
    if (event.memory === "loaded" || repeats(event, this.newest)) return; // its condition is ready
    if (updates(event, this.newest)) this.list.firstChild.remove();
    this.newest = event;
    this.show(eventLine(event));
  }

  lost(count) {
    this.newest = null;
    this.show(h("li", {}, h("span", { class: "what" }, `${format(count)} more events were left out`)));
  }

  show(line) {
    this.list.prepend(line);
    while (this.list.children.length > MAX_EVENTS) this.list.lastChild.remove();
    this.empty.hidden = true;
  }
}

/** Whether a condition follows from what was said of memory. */
const repeats = (event, newest) =>
  event.kind === "condition" && newest?.memory && event.backend === newest.backend && reason(event) === newest.text;

/** Whether it is a further step of what a backend does already. */
const updates = (event, newest) =>
  event.kind === "condition" && newest?.kind === "condition" && event.backend === newest.backend && event.condition === newest.condition;

/** Returns the text without the state that it begins with, for logs. */
function reason({ breaker, condition, text = "" }) {
  const state = breaker ?? condition;
  if (text === state) return "";
  return text.startsWith(`${state}: `) ? text.slice(state.length + 2) : text;
}

function eventLine(event) {
  const { time_s, kind, backend, model, text, failure, breaker, condition, status, seconds, memory } = event;
  const isEmergency = memory === "pressure" && /-> emergency/.test(text);
  const isBad = BAD.has(kind) || BAD_OF_MEMORY.has(memory) || isEmergency || breaker === "open" || condition === "out";
  const isGood = breaker === "closed" || condition === "ready";
  const what = {
    failed: `failed: ${failure}`,
    full: "full",
    refused: `refused: ${status}`,
    degenerate: `loop: ${failure}`,
    breaker: `breaker ${breaker}`,
    condition: condition,
    loops: "repeats one symbol",
    memory: MEMORY[memory],
  }[kind];
  const after = kind === "failed" && seconds != null ? ` after ${format(seconds, 1)} s` : "";
  const time = new Date(time_s * 1000);
  return h(
    "li",
    { class: isBad ? "bad" : isGood ? "good" : "" },
    h("time", { datetime: time.toISOString() }, time.toLocaleTimeString("en-GB")),
    h("b", {}, backend ?? model ?? ""),
    h("span", { class: "what" }, what + after),
    h("span", { class: "text" }, reason(event)),
  );
}
