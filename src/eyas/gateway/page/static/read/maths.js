// Formulas: TeX as models write it becomes MathML, which browsers draw without a style or a script of ours. What is not
// known is shown as it was written. No command names an element or an attribute: only those below can come out.
import { ACCENTS, ALPHABETS, BIG, FUNCTIONS, SPACES, SYMBOLS, alphabet } from "./symbols.js";

const NS = "http://www.w3.org/1998/Math/MathML";
const MAX_DEPTH = 24;
const MAX_LENGTH = 4000;
const TOKEN = /\\(?:[a-zA-Z]+\*?|[\s\S])|[{}^_&~]|\d+(?:[.,]\d+)*|[\s\S]/gu;
const FENCES = {
  ...{ matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"] },
  ...{ Vmatrix: ["‖", "‖"], smallmatrix: ["", ""], cases: ["{", ""], array: ["", ""] },
};
const ALIGNED = new Set(["aligned", "align", "align*", "split", "gathered", "gather", "gather*", "equation", "equation*", "eqnarray"]);

class Unknown extends Error {}

/** Returns a formula as an element; its source, where it cannot be drawn. */
export function mathsView(source, isDisplay) {
  try {
    if (source.length > MAX_LENGTH) throw new Unknown("too long");
    const reader = new Reader(source);
    const row = element("mrow", {}, ...reader.row(() => reader.isAtEnd));
    const note = element("annotation", { encoding: "application/x-tex" }, source.trim());
    const whole = element("math", { display: isDisplay ? "block" : "inline" }, element("semantics", {}, row, note));
    if (!isDisplay) return whole;
    const box = document.createElement("div");
    box.className = "maths";
    box.tabIndex = 0;
    box.role = "region";
    box.ariaLabel = "Formula";
    box.append(whole);
    return box;
  } catch (error) {
    if (!(error instanceof Unknown)) throw error;
    const code = document.createElement(isDisplay ? "pre" : "code");
    code.className = "maths-source";
    code.textContent = source.trim();
    return code;
  }
}

function element(tag, attributes, ...children) {
  const one = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  one.append(...children);
  return one;
}

const operator = (text, attributes = {}) => element("mo", attributes, text);
const space = (width) => element("mspace", { width });
const group = (nodes) => (nodes.length === 1 ? nodes[0] : element("mrow", {}, ...nodes));

class Reader {
  constructor(source) {
    this.tokens = source.match(TOKEN) ?? [];
    this.at = 0;
    this.depth = 0;
  }

  get isAtEnd() {
    this.skipSpace();
    return this.at >= this.tokens.length;
  }

  skipSpace() {
    while (/^\s$/.test(this.tokens[this.at] ?? "")) this.at++;
  }

  peek() {
    this.skipSpace();
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new Unknown("it ends early");
    this.at++;
    return token;
  }

  expect(wanted) {
    if (this.next() !== wanted) throw new Unknown(`no ${wanted}`);
  }

  /** Reads nodes until `isOver()`. */
  row(isOver) {
    if (++this.depth > MAX_DEPTH) throw new Unknown("too deep");
    const nodes = [];
    while (!isOver()) {
      const token = this.peek();
      if (token === undefined) throw new Unknown("it ends early");
      if (token === "\\over" || token === "\\choose") throw new Unknown(token);
      if (token === "\\displaystyle" || token === "\\textstyle" || token === "\\limits" || token === "\\nolimits") {
        this.at++;
        continue;
      }
      nodes.push(this.scripted());
    }
    this.depth--;
    return nodes;
  }

  /** Reads one node with what stands above and below it. */
  scripted() {
    const token = this.peek();
    const isBare = token === "^" || token === "_";
    const base = isBare ? element("mrow", {}) : this.atom();
    let [above, below] = [null, null];
    for (;;) {
      const mark = this.peek();
      if (mark === "^" && !above) {
        this.at++;
        above = this.argument();
      } else if (mark === "_" && !below) {
        this.at++;
        below = this.argument();
      } else if (mark === "'") {
        let primes = "";
        while (this.peek() === "'") {
          primes += "′";
          this.at++;
        }
        const prime = operator(primes);
        above = above ? element("mrow", {}, prime, above) : prime;
        if (this.peek() === "^") {
          this.at++;
          above = element("mrow", {}, above, this.argument());
        }
      } else break;
    }
    const hasLimits = base.isLimit;
    if (above && below) return element(hasLimits ? "munderover" : "msubsup", {}, base, below, above);
    if (above) return element(hasLimits ? "mover" : "msup", {}, base, above);
    if (below) return element(hasLimits ? "munder" : "msub", {}, base, below);
    return base;
  }

  /** Reads a group or a single token. */
  argument() {
    if (this.peek() === "{") return this.braces();
    if (++this.depth > MAX_DEPTH) throw new Unknown("too deep");
    const atom = this.atom();
    this.depth--;
    return atom;
  }

  braces() {
    this.expect("{");
    const nodes = this.row(() => this.peek() === "}");
    this.at++;
    return group(nodes);
  }

  /** Reads `{...}` as the text that it is. */
  raw() {
    this.expect("{");
    let text = "";
    for (let depth = 1; ; ) {
      const token = this.tokens[this.at++];
      if (token === undefined) throw new Unknown("it ends early");
      if (token === "{") depth++;
      if (token === "}" && --depth === 0) return text;
      text += token === "~" ? " " : token.replace(/^\\([ {}$%&#_])$/, "$1");
    }
  }

  atom() {
    const token = this.next();
    if (token === "{") {
      this.at--;
      return this.braces();
    }
    if (token === "}" || token === "&" || token === "^" || token === "_") throw new Unknown(token);
    if (token === "~") return space("0.33em");
    if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
    if (/^\d/.test(token)) return element("mn", {}, token);
    if (/^\p{L}/u.test(token)) return element("mi", {}, token);
    if (token === "-") return operator("−");
    if (token === "*") return operator("∗");
    return operator(token, "()[]|".includes(token) ? { stretchy: "false" } : {});
  }

  command(name) {
    if (Object.hasOwn(SYMBOLS, name)) {
      const text = SYMBOLS[name];
      return /^\p{L}/u.test(text) ? element("mi", {}, text) : operator(text);
    }
    if (Object.hasOwn(BIG, name)) {
      const one = operator(BIG[name], { largeop: "true" });
      one.isLimit = !/int$/.test(name);
      if (one.isLimit) one.setAttribute("movablelimits", "true");
      return one;
    }
    if (Object.hasOwn(FUNCTIONS, name)) {
      const one = element("mi", {}, FUNCTIONS[name]);
      one.isLimit = /^(lim|limsup|liminf|max|min|sup|inf|argmax|argmin|det|Pr|gcd)$/.test(name);
      return one;
    }
    if (Object.hasOwn(SPACES, name)) return space(SPACES[name]);
    if (Object.hasOwn(ACCENTS, name)) return element("mover", { accent: "true" }, this.argument(), operator(ACCENTS[name]));
    if (Object.hasOwn(ALPHABETS, name)) return this.letters(ALPHABETS[name]);
    return this.structure(name);
  }

  letters(style) {
    const text = this.peek() === "{" ? this.raw() : this.next();
    if (/[\\^_]/.test(text)) {
      if (style === null || style === "bold" || style === "italic") return new Reader(text).whole(this.depth);
      throw new Unknown(text);
    }
    return element("mi", { mathvariant: "normal" }, style ? alphabet(text, style) : text);
  }

  whole(depth) {
    this.depth = depth;
    return group(this.row(() => this.isAtEnd));
  }

  structure(name) {
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
      case "cfrac":
        return element("mfrac", {}, this.argument(), this.argument());
      case "binom": {
        const inside = element("mfrac", { linethickness: "0" }, this.argument(), this.argument());
        return element("mrow", {}, operator("("), inside, operator(")"));
      }
      case "sqrt": {
        if (this.peek() !== "[") return element("msqrt", {}, this.argument());
        this.at++;
        const index = group(this.row(() => this.peek() === "]"));
        this.at++;
        return element("mroot", {}, this.argument(), index);
      }
      case "overline":
        return element("mover", {}, this.argument(), operator("‾", { stretchy: "true" }));
      case "underline":
        return element("munder", {}, this.argument(), operator("_", { stretchy: "true" }));
      case "overbrace":
      case "underbrace": {
        const [tag, mark] = name === "overbrace" ? ["mover", "⏞"] : ["munder", "⏟"];
        const one = element(tag, {}, this.argument(), operator(mark, { stretchy: "true" }));
        one.isLimit = true;
        return one;
      }
      case "overset":
      case "stackrel": {
        const above = this.argument();
        return element("mover", {}, this.argument(), above);
      }
      case "underset": {
        const below = this.argument();
        return element("munder", {}, this.argument(), below);
      }
      case "text":
      case "textrm":
      case "textbf":
      case "textit":
      case "mbox":
      case "mathrm":
      case "operatorname":
      case "operatorname*": {
        const text = this.peek() === "{" ? this.raw() : this.next();
        if (/\\/.test(text) && name.startsWith("math")) return new Reader(text).whole(this.depth);
        const one = element(name.startsWith("operator") || name === "mathrm" ? "mi" : "mtext", { mathvariant: "normal" }, text.replaceAll("$", ""));
        one.isLimit = name === "operatorname*";
        return one;
      }
      case "boxed":
        return element("menclose", { notation: "box" }, this.argument());
      case "not": {
        const one = this.argument();
        one.textContent += "\u0338";
        return one;
      }
      case "pmod":
        return element("mrow", {}, operator("("), element("mi", {}, "mod"), space("0.33em"), this.argument(), operator(")"));
      case "tag":
      case "tag*":
        return element("mtext", {}, `\u2003(${this.raw()})`);
      case "label":
      case "nonumber":
      case "notag":
        if (name === "label") this.raw();
        return element("mrow", {});
      case "left":
        return this.fenced();
      case "begin":
        return this.environment();
      default:
        return this.sized(name);
    }
  }

  /** Reads `\big(` and its like. */
  sized(name) {
    const sizes = { big: "1.2em", Big: "1.8em", bigg: "2.4em", Bigg: "3em" };
    const size = /^(big|Big|bigg|Bigg)[lrm]?$/.exec(name);
    if (!size) throw new Unknown(name);
    return operator(this.delimiter(), { stretchy: "true", minsize: sizes[size[1]], maxsize: sizes[size[1]] });
  }

  delimiter() {
    const token = this.next();
    if (token === ".") return "";
    const name = token.length > 1 ? token.slice(1) : null;
    const text = name ? (SYMBOLS[name] ?? null) : token;
    if (text === null || !Object.hasOwn(name ? SYMBOLS : { [token]: 1 }, name ?? token)) throw new Unknown(token);
    return text;
  }

  fenced() {
    const nodes = [operator(this.delimiter(), { stretchy: "true" })];
    for (;;) {
      nodes.push(...this.row(() => this.peek() === "\\right" || this.peek() === "\\middle"));
      const isEnd = this.next() === "\\right";
      nodes.push(operator(this.delimiter(), { stretchy: "true" }));
      if (isEnd) return element("mrow", {}, ...nodes);
    }
  }

  environment() {
    const name = this.raw();
    const isAligned = ALIGNED.has(name);
    if (!isAligned && !Object.hasOwn(FENCES, name)) throw new Unknown(name);
    if (name === "array") this.raw();
    const rows = [[]];
    for (;;) {
      const cell = this.row(() => ["&", "\\\\", "\\end"].includes(this.peek()));
      rows.at(-1).push(element("mtd", {}, ...cell));
      const token = this.next();
      if (token === "\\\\") {
        if (this.peek() === "[") while (this.next() !== "]");
        rows.push([]);
      } else if (token === "\\end") break;
    }
    if (this.raw() !== name) throw new Unknown(name);
    const full = rows.filter((row) => row.some((cell) => cell.childNodes.length));
    const kind = isAligned ? "aligned" : name === "cases" ? "cases" : "matrix";
    const table = element("mtable", { class: kind }, ...full.map((row) => element("mtr", {}, ...row)));
    if (isAligned) return table;
    const [open, close] = FENCES[name];
    return element("mrow", {}, operator(open, { stretchy: "true" }), table, operator(close, { stretchy: "true" }));
  }
}
