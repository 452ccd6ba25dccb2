// Memory of pools, from the feed's status: a bar by owner with the marks of pressure, and the last ten minutes of it.
import { format, h } from "./dom.js";

const SVG = document.querySelector("svg").namespaceURI;
const SPAN_S = 600;
const STEP_S = 2; // between two samples; the higher one is kept
const STALE_S = 15; // an older figure is a gap, and so is a longer time without a status
const SEATS = 8; // colours
const MARKS = ["warning", "critical", "emergency"];
const OTHERS = "others"; // the system, and processes that the router does not know

export function readable(bytes) {
  const gib = bytes / 2 ** 30;
  return gib >= 1 ? `${format(gib, 1)} GiB` : `${format(bytes / 2 ** 20)} MiB`;
}

/** Colours of backends, the same in every bar, area and card. */
export class Owners {
  constructor() {
    this.numbers = new Map();
  }

  paint(element, name) {
    if (name !== OTHERS && !this.numbers.has(name)) this.numbers.set(name, this.numbers.size % SEATS);
    element.style.setProperty("--owner", name === OTHERS ? "var(--cell)" : `var(--seat-${this.numbers.get(name)})`);
    return element;
  }
}

export class Memory {
  constructor(section, owners) {
    this.section = section;
    this.owners = owners;
    this.views = new Map();
  }

  show(pools) {
    this.section.hidden = !pools.length;
    for (const pool of pools) {
      if (!this.views.has(pool.name)) {
        this.views.set(pool.name, new PoolView(pool, this.owners));
        this.section.append(this.views.get(pool.name).element);
      }
      this.views.get(pool.name).update(pool, Date.now() / 1000);
    }
  }

  /** What it shows may be old: there is no connection. */
  fade() {
    for (const { element } of this.views.values()) element.classList.add("faded");
  }
}

/** One pool; its elements stay, and change with each status. */
class PoolView {
  constructor({ name, members, warning, critical, emergency }, owners) {
    const marks = { warning, critical, emergency };
    this.samples = []; // { at, sizes }: bytes by owner
    const names = [OTHERS, ...members.map(({ backend }) => backend)];
    this.level = h("span", { class: "state" });
    this.used = h("span", { class: "load" });
    this.parts = new Map(names.map((one) => [one, owners.paint(h("span", { class: "part" }), one)]));
    this.sizes = new Map(names.map((one) => [one, h("b", {})]));
    this.free = h("b", {});
    const notes = MARKS.map((mark) => `${mark} ${format(100 * marks[mark])} %`).join(" · ");
    this.stalls = h("p", { class: "note", hidden: true });
    this.fault = h("p", { class: "reason", hidden: true });
    this.areas = new Map(names.map((one) => [one, owners.paint(draw("path", { class: "area" }), one)]));
    const line = (mark, part) => draw("path", { class: `level ${part}`, d: `M0 ${100 - 100 * marks[mark]}H${SPAN_S}` });
    const lines = MARKS.flatMap((mark) => [line(mark, "light"), line(mark, "dark")]);
    this.chart = draw("svg", { class: "history", role: "img", viewBox: `0 0 ${SPAN_S} 100`, preserveAspectRatio: "none" });
    this.chart.append(...this.areas.values(), ...lines);
    this.bar = h("div", { class: "parts", role: "img" }, ...this.parts.values());
    for (const mark of MARKS) {
      this.bar.append(h("i", { class: "level" }));
      this.bar.lastChild.style.left = `${100 * marks[mark]}%`;
    }
    const about = (one) => one === OTHERS && "the system, and processes that the router does not know";
    const entry = (one) => h("li", { title: about(one) }, owners.paint(h("i", { class: "swatch" }), one), `${one} `, this.sizes.get(one));
    const key = h("ul", { class: "owners" }, ...names.map(entry), h("li", {}, h("i", { class: "swatch free" }), "free ", this.free));
    const axis = h("p", { class: "axis", "aria-hidden": "true" }, h("span", {}, "10 minutes ago"), h("span", {}, "now"));
    const head = h("div", { class: "card-head" }, h("h3", {}, name), this.level, this.used);
    this.element = h("article", { class: "card pool" }, head, this.bar, key, this.chart, axis, h("p", { class: "note" }, `Marks: ${notes}`), this.stalls, this.fault);
    this.element.dataset.pool = name;
  }

  update(pool, now) {
    const { name, members, total, used, others, level, age_s, fault, some, full } = pool;
    const isKnown = total != null;
    const sizes = { [OTHERS]: others ?? 0, ...Object.fromEntries(members.map((one) => [one.backend, one.used])) };
    const isStale = age_s == null || age_s > STALE_S;
    this.element.classList.remove("faded");
    this.level.textContent = isKnown ? level : "unknown";
    this.level.dataset.state = this.level.textContent;
    this.used.textContent = isKnown ? `${readable(used)} of ${readable(total)}, ${format((100 * used) / total)} %` : "not measured yet";
    for (const [owner, part] of this.parts) part.style.width = isKnown ? `${(100 * sizes[owner]) / total}%` : "0";
    for (const { backend, state } of members) this.sizes.get(backend).textContent = sizes[backend] ? readable(sizes[backend]) : state;
    this.sizes.get(OTHERS).textContent = isKnown ? readable(others) : "–";
    this.free.textContent = isKnown ? readable(Math.max(0, total - used)) : "–";
    const held = Object.entries(sizes).filter(([, size]) => size);
    const text = held.map(([owner, size]) => `${owner} ${readable(size)}`).join(", ");
    this.bar.ariaLabel = `${name}: ${this.used.textContent}, ${this.level.textContent}${text && `; ${text}`}`;
    this.stalls.textContent = `Of the last 10 s some tasks stalled for memory ${format(some)} %, all ${format(full)} %`;
    this.stalls.hidden = some < 1;
    const old = age_s != null && isStale ? `measured ${format(age_s)} s ago` : "";
    this.fault.textContent = [fault, old].filter(Boolean).join(" · ");
    this.fault.hidden = !this.fault.textContent;
    if (isKnown && !isStale) this.remember(now, sizes);
    if (isKnown) this.drawHistory(now, total);
  }

  remember(now, sizes) {
    const last = this.samples.at(-1);
    const sum = (values) => Object.values(values).reduce((whole, size) => whole + size, 0);
    if (!last || now >= last.at + STEP_S) this.samples.push({ at: now, sizes });
    else if (sum(sizes) >= sum(last.sizes)) last.sizes = sizes;
    while (this.samples[0].at < now - SPAN_S) this.samples.shift();
  }

  drawHistory(now, total) {
    const runs = [];
    for (const one of this.samples) {
      if (!runs.length || one.at > runs.at(-1).at(-1).at + STALE_S) runs.push([]);
      runs.at(-1).push(one);
    }
    const newest = this.samples.at(-1);
    if (newest && now < newest.at + STALE_S) runs.at(-1).push({ at: now, sizes: newest.sizes });
    const below = new Map(); // bytes of the owners below, by sample
    const point = (one, bytes) => `${(SPAN_S - now + one.at).toFixed(1)} ${(100 - (100 * bytes) / total).toFixed(2)}`;
    for (const [owner, area] of this.areas) {
      const paths = runs.map((run) => {
        const lower = run.map((one) => point(one, below.get(one) ?? 0));
        for (const one of run) below.set(one, (below.get(one) ?? 0) + (one.sizes[owner] ?? 0));
        return `M${[...run.map((one) => point(one, below.get(one))), ...lower.reverse()].join("L")}Z`;
      });
      area.setAttribute("d", paths.join(""));
    }
    const most = Math.max(0, ...below.values());
    this.chart.ariaLabel = `Memory by owner over the last 10 minutes, at most ${readable(most)}`;
  }
}

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
