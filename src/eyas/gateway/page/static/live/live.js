// The live view: what each step of the engine did, drawn from the messages of /live (live_message.py has the schema).
import { $, pause } from "../dom.js";
import { call, events } from "../stream.js";
import { Card } from "./cards.js";
import { Figures } from "./figures.js";
import { MemoryMap } from "./memory_map.js";
import { Rounds } from "./rounds.js";

const MAX_CARDS = 64;
const SHORT_ID = 6;
const DRAFTERS = { eagle3: "EAGLE-3", ngram: "prompt lookup" };

export class LiveView {
  constructor() {
    this.seats = []; // one card each; an ended request's card stays until another needs it
    this.figures = new Figures();
    this.memory = new MemoryMap(this.seats);
    this.own = new Set();
    this.controller = null;
    this.rounds = new Rounds($("rounds"), () => this.hold(true));
    $("hold").onclick = () => this.hold(!this.isHeld);
    $("show-rejected").onchange = ({ target }) => $("cards").classList.toggle("without-rejected", !target.checked);
  }

  /** Pauses the view, or goes on. */
  hold(isHeld) {
    this.isHeld = isHeld;
    $("hold").setAttribute("aria-pressed", isHeld);
    $("hold").textContent = isHeld ? "Resume" : "Pause";
    if (!isHeld) this.rounds.follow();
    this.follow(this.isSeen);
  }

  /** Remember which request is this page's own. */
  mark(id) {
    this.own.add(id.slice(-SHORT_ID));
    for (const seat of this.seats) if (seat.id === id.slice(-SHORT_ID)) seat.claim();
  }

  /** Shows what the server says of its drafter. */
  know(drafter) {
    $("drafter").textContent = DRAFTERS[drafter] ?? "No drafter";
  }

  follow(isSeen) {
    this.isSeen = isSeen;
    const wanted = isSeen && !this.isHeld;
    if (wanted === Boolean(this.controller)) return;
    this.controller?.abort();
    this.controller = wanted ? new AbortController() : null;
    if (wanted) this.run(this.controller.signal);
  }

  async run(signal) {
    this.break();
    while (!signal.aborted) {
      try {
        const response = await call("/live", { signal });
        let failure = null;
        for await (const data of events(response)) {
          const message = JSON.parse(data);
          failure = message.failure;
          this.say(failure ? `The engine is not serving: ${failure}` : "");
          this.take(message);
        }
        if (!failure) throw new Error("The connection was lost.");
      } catch (error) {
        if (signal.aborted) return;
        const needsKey = error.status === 401;
        this.say(needsKey ? "Send a message in the chat first: this server needs an API key." : error.message);
        this.break();
        this.figures.clear();
        if (error.status === 404) return;
      }
      await pause(1000);
    }
  }

  say(text) {
    if ($("live-note").textContent !== text) $("live-note").textContent = text;
    $("live-note").hidden = !text;
  }

  /** Mark a gap after lost messages: texts continue after an ellipsis. */
  break() {
    this.figures.break();
    for (const seat of this.seats) seat.hasGap = true;
  }

  take(message) {
    if (message.lost) return this.break();
    const seated = (message.slots ?? []).map((slot) => this.seat(slot).add(slot));
    if (message.running === 0)
      for (const seat of this.seats) if (!seat.finish && !seated.includes(seat)) seat.end("gone");
    this.figures.count(message);
    this.rounds.take(message);
    this.memory.draw(message);
    $("no-requests").hidden = this.seats.length > 0;
  }

  seat(slot) {
    const key = `${slot.id}/${slot.choice}`;
    let seat = this.seats.find((one) => one.key === key);
    if (seat) return seat;
    const old = this.seats.filter((one) => one.finish).sort((a, b) => a.endedAt - b.endedAt)[0];
    const isFull = this.seats.length >= MAX_CARDS || (old && performance.now() - old.endedAt > 3000);
    const number = isFull && old ? this.seats.indexOf(old) : this.seats.length;
    seat = new Card(key, number, slot, (...round) => this.figures.round(...round));
    if (this.own.has(slot.id)) seat.claim();
    if (number < this.seats.length) this.seats[number].element.replaceWith(seat.element);
    else $("cards").append(seat.element);
    this.seats[number] = seat;
    return seat;
  }
}
