// Cards of requests in the live view: the text of one choice, with the origin of each token.
import { format, h } from "../dom.js";

const KEPT_ROUNDS = 120; // per card

/** One choice of a request. */
export class Card {
  constructor(key, number, { id, choice }, onRound) {
    Object.assign(this, { key, id, onRound, finish: null, endedAt: 0, hasGap: true, tokens: 0, rounds: 0, accepted: 0, drafted: 0 });
    this.numbers = h("span", { class: "numbers" });
    this.drafts = h("p", { class: "note drafts" });
    this.text = h("div", { class: "tokens" });
    const name = nameOf({ id, choice });
    const seat = h("span", { class: "seat" }, `${number + 1}`);
    seat.style.setProperty("--seat", `var(--seat-${number % 8})`);
    this.element = h(
      "article",
      { class: "card", "aria-label": `Request ${number + 1}, ${name}` },
      h("h3", {}, seat, h("span", { class: "id" }, name), this.numbers),
      this.drafts,
      h("div", { class: "window" }, this.text),
    );
  }

  add({ first, rounds, finish }) {
    if (first) this.hasGap = false;
    if (this.hasGap && rounds.length) this.text.append(h("span", { class: "gap" }, "…"));
    this.hasGap = false;
    this.rounds += rounds.length - (first ? 1 : 0); // the first token comes from prefill, not from a round
    rounds.forEach(({ accepted, rejected, own }, n) => {
      if (!(first && n === 0)) this.onRound(this.tokens, accepted.length, accepted.length + rejected.length);
      this.tokens += accepted.length + own.length;
      this.accepted += accepted.length;
      this.drafted += accepted.length + rejected.length;
    });
    this.text.append(...rounds.slice(-KEPT_ROUNDS).map(roundView));
    while (this.text.childElementCount > KEPT_ROUNDS) this.text.firstElementChild.remove();
    const length = this.rounds ? ` · ${format(1 + this.accepted / this.rounds, 2)}/round` : "";
    this.numbers.textContent = `${format(this.tokens)} tokens${length}`;
    const drafts = this.rounds ? `drafted ${format(this.drafted / this.rounds, 1)} a round, ${format((100 * this.accepted) / (this.drafted || 1))} % accepted` : "";
    this.drafts.textContent = drafts;
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

export const nameOf = ({ id, choice }) => id + (choice ? ` · choice ${choice}` : "");

const ORIGINS = ["accepted", "rejected", "own"];
export const roundView = (round) =>
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
