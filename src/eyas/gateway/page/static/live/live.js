// The live view: what each step of the engine did, drawn from the messages of /live (live_message.py has the schema).
import { format, h, pause } from "../dom.js";
import { call, events } from "../stream.js";

const $ = (id) => document.getElementById(id);
const WINDOW = 300; // messages that the figures cover: 30 s of work
const POINTS = 120; // of the sparkline
const SPEED_S = 3;
const KEPT_ROUNDS = 120; // per card
const MAX_CARDS = 64;
const CELL = 13; // pixels, of a memory map
const ROWS = 4;
const SHORT_ID = 6;

export class LiveView {
  constructor() {
    this.seats = []; // one card each; an ended request's card stays until another needs it
    this.window = [];
    this.owners = {};
    this.own = new Set();
    this.controller = null;
    $("hold").onclick = () => {
      const isHeld = $("hold").getAttribute("aria-pressed") !== "true";
      $("hold").setAttribute("aria-pressed", isHeld);
      $("hold").textContent = isHeld ? "Resume" : "Pause";
      this.follow(this.isSeen);
    };
    $("show-rejected").onchange = ({ target }) => $("cards").classList.toggle("without-rejected", !target.checked);
  }

  /** Remember which request is this page's own. */
  mark(id) {
    this.own.add(id.slice(-SHORT_ID));
    for (const seat of this.seats) if (seat.id === id.slice(-SHORT_ID)) seat.claim();
  }

  /** Takes what the server says of its drafter. */
  know(drafter) {
    this.drafter = drafter;
  }

  follow(isSeen) {
    this.isSeen = isSeen;
    const wanted = isSeen && $("hold").getAttribute("aria-pressed") !== "true";
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
    this.window = [];
    for (const seat of this.seats) seat.hasGap = true;
  }

  take(message) {
    if (message.lost) return this.break();
    const seated = (message.slots ?? []).map((slot) => this.seat(slot).add(slot));
    if (message.running === 0)
      for (const seat of this.seats) if (!seat.finish && !seated.includes(seat)) seat.end("gone");
    this.count(message);
    this.drawMemory(message);
    $("no-requests").hidden = this.seats.length > 0;
  }

  seat(slot) {
    const key = `${slot.id}/${slot.choice}`;
    let seat = this.seats.find((one) => one.key === key);
    if (seat) return seat;
    const old = this.seats.filter((one) => one.finish).sort((a, b) => a.endedAt - b.endedAt)[0];
    const isFull = this.seats.length >= MAX_CARDS || (old && performance.now() - old.endedAt > 3000);
    const number = isFull && old ? this.seats.indexOf(old) : this.seats.length;
    seat = new Card(key, number, slot);
    if (this.own.has(slot.id)) seat.claim();
    if (number < this.seats.length) this.seats[number].element.replaceWith(seat.element);
    else $("cards").append(seat.element);
    this.seats[number] = seat;
    return seat;
  }

  // -- numbers --------------------------------------------------------------------------------------------------------

  count(message) {
    $("running").textContent = format(message.running);
    $("waiting").textContent = format(message.waiting);
    const now = message.t;
    if (message.step !== undefined) {
      this.window.push(message);
      if (this.window.length > WINDOW) this.window.shift();
      $("step").textContent = `${format(message.ms, message.ms < 10 ? 1 : 0)} ms`;
      if (message.k !== undefined) $("drafts").textContent = format(message.k);
    }
    const recent = this.window.filter((one) => one.t > now - SPEED_S);
    const seconds = recent.length > 1 ? now - recent[0].t : 0;
    const tokens = recent.slice(1).reduce((sum, one) => sum + one.tokens, 0);
    const speed = seconds ? tokens / seconds : 0;
    $("speed").textContent = message.running && !seconds ? "…" : format(speed, speed && speed < 100 ? 1 : 0);
    this.drawAcceptance();
  }

  drawAcceptance() {
    const drafted = total(this.window.map((one) => one.drafted));
    const accepted = total(this.window.map((one) => one.accepted));
    const rounds = this.window.reduce((sum, one) => sum + one.rounds, 0);
    const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
    if (!rounds) return;
    $("length").textContent = format(1 + sum(accepted) / rounds, 2);
    $("positions-note").textContent =
      `Share of the tokens drafted at a position that the model accepted, over ${format(rounds)} rounds.`;
    const bars = $("positions");
    while (bars.children.length < drafted.length) bars.append(h("li", {}, h("div", { class: "bar" }), h("span", {})));
    [...bars.children].forEach(({ firstChild: bar, lastChild: label }, n) => {
      const share = (accepted[n] ?? 0) / drafted[n];
      bar.style.setProperty("--share", share || 0);
      label.textContent = drafted[n] ? `${format(share * 100)} % of ${format(drafted[n])}` : "–";
    });
    const latest = this.window.slice(-POINTS).filter((one) => one.rounds);
    const points = latest.map((one, n) => {
      const [x, y] = [n / Math.max(latest.length - 1, 1), sum(one.accepted) / one.rounds / (drafted.length || 1)];
      return `${120 * x},${26 - 24 * y}`;
    });
    $("spark").firstElementChild.setAttribute("points", points.join(" "));
  }

  // -- memory ---------------------------------------------------------------------------------------------------------

  drawMemory(message) {
    for (const [name, group] of Object.entries(message.pages)) {
      if (message.step !== undefined || message.running === 0) this.owners[name] = group.owners;
      const runs = this.runs(group, this.owners[name] ?? []);
      let map = $(`memory-${name}`);
      if (!map) {
        map = h("figure", { id: `memory-${name}` }, h("figcaption", {}), h("canvas", { role: "img" }));
        $("memory").append(map);
      }
      const free = group.total - group.used - group.idle;
      const counts = `${format(group.used)} pages held · ${format(group.idle)} idle · ${format(free)} free`;
      const text = `${name} layers · ${counts}`;
      map.firstChild.textContent = text;
      map.lastChild.ariaLabel = text;
      drawCells(map.lastChild, runs, group.total);
    }
  }

  /** Returns [pages, seat number or "other", "idle", "free"] in drawing order, which is not by address. */
  runs({ total, used, idle }, owners) {
    const seatOf = (id, choice) => this.seats.findIndex((one) => one.key === `${id}/${choice}`);
    const held = owners.map(([id, choice, pages]) => [pages, seatOf(id, choice)]);
    const claimed = held.reduce((sum, [pages]) => sum + pages, 0);
    const scale = claimed > used ? used / claimed : 1; // shared pages are counted for each owner
    const known = held.map(([pages, seat]) => [pages * scale, seat < 0 ? "other" : seat]);
    known.sort((a, b) => (a[1] === "other") - (b[1] === "other") || a[1] - b[1]);
    return [...known, [Math.max(used - claimed, 0), "other"], [idle, "idle"], [total - used - idle, "free"]];
  }
}

/** Returns the sum of lists of numbers, position by position. */
function total(lists) {
  const sum = [];
  for (const list of lists) list.forEach((number, n) => (sum[n] = (sum[n] ?? 0) + number));
  return sum;
}

function drawCells(canvas, runs, pages) {
  const width = canvas.clientWidth;
  if (!width) return;
  const colour = (name) => {
    canvas.style.color = `var(${name})`; // makes the browser resolve light-dark()
    return getComputedStyle(canvas).color;
  };
  const columns = Math.round(width / CELL);
  const size = width / columns;
  const rows = Math.min(ROWS, Math.ceil(pages / columns));
  const cells = Math.min(pages, rows * columns);
  canvas.style.height = `${rows * size}px`;
  const ratio = devicePixelRatio;
  Object.assign(canvas, { width: width * ratio, height: rows * size * ratio });
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  draw.font = "bold 8px system-ui, sans-serif";
  draw.textAlign = "center";
  draw.textBaseline = "middle";
  // Every owner gets at least one cell, however small its share.
  const counts = runs.map(([count]) => (count > 0 ? Math.max(Math.round((count * cells) / pages), 1) : 0));
  counts[counts.length - 1] = Math.max(cells - counts.slice(0, -1).reduce((a, b) => a + b, 0), 0);
  let at = 0;
  runs.forEach(([, owner], n) => {
    for (let i = 0; i < counts[n] && at < cells; i++, at++) {
      const [x, y] = [(at % columns) * size, Math.floor(at / columns) * size];
      const isFilled = owner !== "free" && owner !== "idle";
      const name = owner === "other" ? "--muted" : `--seat-${owner % 8}`;
      draw.fillStyle = draw.strokeStyle = colour(isFilled ? name : "--cell");
      if (isFilled) draw.fillRect(x, y, size - 2, size - 2);
      else draw.strokeRect(x + 0.5, y + 0.5, size - 3, size - 3);
      if (owner === "idle") {
        draw.beginPath();
        draw.moveTo(x + 1, y + size - 3);
        draw.lineTo(x + size - 3, y + 1);
        draw.stroke();
      }
      if (isFilled && owner !== "other" && i === 0) {
        draw.fillStyle = colour("--on-seat");
        draw.fillText(owner + 1, x + size / 2 - 1, y + size / 2 - 0.5);
      }
    }
  });
}

/** One choice of a request. */
class Card {
  constructor(key, number, { id, choice }) {
    Object.assign(this, { key, id, finish: null, endedAt: 0, hasGap: true, tokens: 0, rounds: 0, accepted: 0 });
    this.numbers = h("span", { class: "numbers" });
    this.text = h("div", { class: "tokens" });
    const name = `${id}${choice ? ` · choice ${choice}` : ""}`;
    const seat = h("span", { class: `seat seat-${number % 8}` }, `${number + 1}`);
    this.element = h(
      "article",
      { class: "card", "aria-label": `Request ${number + 1}, ${name}` },
      h("h3", {}, seat, h("span", { class: "id" }, name), this.numbers),
      h("div", { class: "window" }, this.text),
    );
  }

  add({ first, rounds, finish }) {
    if (first) this.hasGap = false;
    if (this.hasGap && rounds.length) this.text.append(h("span", { class: "gap" }, "…"));
    this.hasGap = false;
    this.rounds += rounds.length - (first ? 1 : 0); // the first token comes from prefill, not from a round
    for (const { accepted, own } of rounds) {
      this.tokens += accepted.length + own.length;
      this.accepted += accepted.length;
    }
    this.text.append(...rounds.slice(-KEPT_ROUNDS).map(roundView));
    while (this.text.childElementCount > KEPT_ROUNDS) this.text.firstElementChild.remove();
    const length = this.rounds ? ` · ${format(1 + this.accepted / this.rounds, 2)}/round` : "";
    this.numbers.textContent = `${format(this.tokens)} tokens${length}`;
    if (finish) this.end(finish);
    return this;
  }

  claim() {
    this.numbers.before(h("span", { class: "own-chat" }, "yours"));
  }

  end(finish) {
    this.finish = finish;
    this.endedAt = performance.now();
    this.element.classList.add("ended");
    this.element.querySelector("h3").append(h("span", { class: "finish" }, finish));
  }
}

const ORIGINS = ["accepted", "rejected", "own"];
const roundView = (round) =>
  h("span", {}, ...ORIGINS.flatMap((origin) => round[origin].map((token) => tokenView(token, origin))));

/** Shows a text, or its length if texts are hidden. */
function tokenView(token, origin) {
  const isText = typeof token === "string";
  const isControl = isText && /^<\|\w+\|>$/.test(token);
  const classes = `${origin}${isControl ? " control" : ""}${isText ? "" : " blank"}`;
  const view = h("span", { class: classes }, isText ? token.replaceAll("\n", "↵") : "");
  if (!isText) view.style.setProperty("--size", token);
  return view;
}
