// The figures of the live view: tiles, acceptance by draft and by output position, what speculation is worth.
import { $, format, h } from "../dom.js";

const WINDOW = 300; // messages that the figures cover: 30 s of work
const POINTS = 120; // of the sparkline
const SPEED_S = 3;
const TILES = ["speed", "length", "drafts", "step", "running", "waiting"];
// Acceptance by output position: a bar for tokens up to each of these, and one for those after.
const REACHES = [16, 64, 256, 1024, 4096, Infinity];
const MIN_STEPS = 5; // a mean of fewer says nothing

export class Figures {
  constructor() {
    this.window = [];
    this.reaches = REACHES.map(() => ({ drafted: 0, accepted: 0 }));
    this.costs = new Map(); // "running sequences/drafts" -> { steps, ms, tokens }
  }

  /** Forgets what was before a gap. */
  break() {
    this.window = [];
  }

  /** Shows that nothing is known now: there is no connection. */
  clear() {
    for (const id of TILES) $(id).textContent = "–";
    $("spark").firstElementChild.setAttribute("points", "");
  }

  /** Counts a round of a request that began at an output position. */
  round(position, accepted, drafted) {
    const bucket = this.reaches[REACHES.findIndex((reach) => position < reach)];
    bucket.accepted += accepted;
    bucket.drafted += drafted;
  }

  count(message) {
    $("running").textContent = format(message.running);
    $("waiting").textContent = format(message.waiting);
    const now = message.t;
    if (message.step !== undefined) {
      this.window.push(message);
      if (this.window.length > WINDOW) this.window.shift();
      $("step").textContent = `${format(message.ms, message.ms < 10 ? 1 : 0)} ms`;
      if (message.k !== undefined) $("drafts").textContent = format(message.k);
      this.learn(message);
    }
    const recent = this.window.filter((one) => one.t > now - SPEED_S);
    const seconds = recent.length > 1 ? now - recent[0].t : 0;
    const tokens = sum(recent.slice(1).map((one) => one.tokens));
    const speed = seconds ? tokens / seconds : 0;
    $("speed").textContent = message.running && !seconds ? "…" : format(speed, speed && speed < 100 ? 1 : 0);
    this.drawAcceptance();
    this.drawReaches();
    this.drawWorth(message);
  }

  /** Remembers time and tokens of a step by its sequences and drafts. Steps without a round are prompts. */
  learn({ k, ms, steps, rounds, tokens }) {
    if (k === undefined || !rounds) return;
    const sequences = Math.round(rounds / steps);
    const key = `${sequences}/${k}`;
    const cost = this.costs.get(key) ?? { steps: 0, ms: 0, tokens: 0 };
    const share = steps / (cost.steps + steps);
    cost.ms += share * (ms - cost.ms);
    cost.tokens += share * (tokens / steps - cost.tokens);
    cost.steps = Math.min(cost.steps + steps, 1000); // so that newer steps count
    this.costs.set(key, cost);
  }

  drawAcceptance() {
    const drafted = total(this.window.map((one) => one.drafted));
    const accepted = total(this.window.map((one) => one.accepted));
    const rounds = sum(this.window.map((one) => one.rounds));
    if (!rounds) return;
    $("length").textContent = format(1 + sum(accepted) / rounds, 2);
    $("positions-note").textContent = `, over ${format(rounds)} rounds`;
    drawBars($("positions"), drafted.map((count, n) => ({ drafted: count, accepted: accepted[n] ?? 0 })));
    const latest = this.window.slice(-POINTS).filter((one) => one.rounds);
    const points = latest.map((one, n) => {
      const [x, y] = [n / Math.max(latest.length - 1, 1), sum(one.accepted) / one.rounds / (drafted.length || 1)];
      return `${120 * x},${26 - 24 * y}`;
    });
    $("spark").firstElementChild.setAttribute("points", points.join(" "));
  }

  drawReaches() {
    drawBars($("reaches"), this.reaches);
    [...$("reaches").children].forEach((bar, n) => {
      const reach = REACHES[n];
      bar.dataset.name = reach === Infinity ? `${format(REACHES[n - 1])}+` : `< ${format(reach)}`;
    });
  }

  /** Compares the speed with that of steps without drafts, by the engine's costs or as seen here. */
  drawWorth({ k, rounds, steps, undrafted_ms }) {
    if (k === undefined || !rounds) return;
    const sequences = Math.round(rounds / steps);
    const own = this.costs.get(`${sequences}/${k}`);
    const seen = this.costs.get(`${sequences}/0`);
    const speed = (1000 * own.tokens) / own.ms;
    const drafts = k ? `With ${format(k)} drafts for each of` : "Without drafts,";
    const parts = [`${drafts} ${format(sequences)} sequence${sequences > 1 ? "s" : ""}: ${format(speed)} tokens/s of steps.`];
    const ms = undrafted_ms ?? (seen?.steps >= MIN_STEPS ? seen.ms : null);
    if (k && ms) {
      const source = undrafted_ms ? "takes by the engine’s own costs" : "took";
      parts.push(`Without: ${format((1000 * sequences) / ms)} tokens/s, by the ${format(ms, 1)} ms that such a step ${source}.`);
      parts.push(`Speculation makes it ${format((speed * ms) / (1000 * sequences), 2)} times as fast.`);
    } else if (k) parts.push("Without: not known, since the engine times no steps and none without drafts was seen.");
    $("worth").textContent = parts.join(" ");
  }
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function drawBars(bars, entries) {
  while (bars.children.length < entries.length) bars.append(h("li", {}, h("div", { class: "bar" }), h("span", {})));
  entries.forEach(({ drafted, accepted }, n) => {
    const { firstChild: bar, lastChild: label } = bars.children[n];
    const share = drafted ? accepted / drafted : 0;
    bar.style.setProperty("--share", share);
    label.textContent = drafted ? `${format(share * 100)} % of ${format(drafted)}` : "–";
  });
}

/** Returns the sum of lists of numbers, position by position. */
function total(lists) {
  const totals = [];
  for (const list of lists) list.forEach((number, n) => (totals[n] = (totals[n] ?? 0) + number));
  return totals;
}
