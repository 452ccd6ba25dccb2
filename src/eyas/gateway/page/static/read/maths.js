// Formulas: Temml (vendor/VERSIONS.txt) reads TeX, and its tree becomes MathML here, of the names below and no others; the
// policy allows no style attribute. What Temml does not know is shown as it was written. It is loaded for the first one.
import { h } from "../dom.js";

const NS = "http://www.w3.org/1998/Math/MathML";
const MAX_LENGTH = 4000;
const MAX_KEPT = 500;
const OPTIONS = { throwOnError: true, trust: false, maxExpand: 300, maxSize: [20, 200] };
// Definitions could make a short text long; `\cancelto` wants a picture that the policy does not allow.
const REFUSED = /\\(?:re)?newcommand|\\providecommand|\\[gex]?def(?![a-z])|\\(?:future)?let(?![a-z])|\\cancelto/;
const names = (text) => new Set(text.split(" "));
const ATTRIBUTES = names(
  "accent accentunder columnspan depth display displaystyle encoding fence form height largeop linethickness lspace mathvariant maxsize minsize movablelimits notation rowspan rspace scriptlevel separator stretchy symmetric voffset width",
);
const STYLES = names(
  "border borderBottom borderLeft borderRight borderTop color display fontSize fontStyle fontWeight marginLeft mathDepth padding paddingBottom paddingLeft paddingRight paddingTop textAlign",
);

let temml = null;
let loading = null;
const drawn = new Map(); // formulas by their source: a growing text is read again and again

/** Loads Temml and its style sheet. */
export function load() {
  if (!loading) {
    loading = import("../vendor/temml/temml.mjs").then((module) => (temml = module.default));
    document.head.append(h("link", { rel: "stylesheet", href: "/page/vendor/temml/Temml-Local.css" }));
  }
  return loading;
}

/** Returns a formula as an element; its source, until it can be drawn or if it cannot. */
export function mathsView(source, isDisplay) {
  if (temml) return view(source, isDisplay);
  const shown = plain(source, isDisplay);
  load().then(() => shown.replaceWith(view(source, isDisplay)), () => (loading = null));
  return shown;
}

function view(source, isDisplay) {
  const key = `${isDisplay}${source}`;
  if (!drawn.has(key)) drawn.set(key, draw(source, isDisplay));
  if (drawn.size > MAX_KEPT) drawn.delete(drawn.keys().next().value);
  return drawn.get(key).cloneNode(true);
}

const plain = (source, isDisplay) => h(isDisplay ? "pre" : "code", { class: "maths-source" }, source.trim());

function draw(source, isDisplay) {
  if (source.length > MAX_LENGTH || REFUSED.test(source)) return plain(source, isDisplay);
  let whole;
  try {
    whole = build(temml.__renderToMathMLTree(source, { ...OPTIONS, displayMode: isDisplay, annotate: true }));
  } catch {
    return plain(source, isDisplay); // it is wrong, too deep, or of a kind that is not drawn
  }
  return isDisplay ? h("div", { class: "maths", tabindex: "0", role: "region", "aria-label": "Formula" }, whole) : whole;
}

function build(node) {
  if (node.text !== undefined) return node.text;
  if (!node.type) {
    const group = document.createDocumentFragment();
    group.append(...node.children.map(build));
    return group;
  }
  if (!/^(m[a-z]+|semantics|annotation)$/.test(node.type)) throw new TypeError(node.type);
  const one = document.createElementNS(NS, node.type);
  for (const [name, value] of Object.entries(node.attributes)) if (ATTRIBUTES.has(name)) one.setAttribute(name, value);
  for (const [name, value] of Object.entries(node.style)) if (STYLES.has(name)) one.style[name] = value;
  if (node.classes.length) one.setAttribute("class", node.classes.filter(Boolean).join(" "));
  one.append(...node.children.map(build));
  return one;
}
