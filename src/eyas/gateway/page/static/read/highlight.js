// Colours of code, line by line. The languages are CodeMirror's (vendor/VERSIONS.txt); each is loaded when it first comes.

// A mode's file and export, and the names that stand for it.
const MODES = `python/python py python3 pycon triton
javascript/javascript js jsx mjs cjs vue
javascript/typescript ts tsx
javascript/json json jsonc json5 jsonl
clike/c h objc
clike/cpp c++ cc cxx hpp cuda cu
clike/java groovy php
clike/csharp cs c#
clike/kotlin kt swift
clike/scala sbt
clike/dart
clike/shader glsl wgsl metal
rust/rust rs
go/go golang
shell/shell sh bash zsh console fish dockerfile docker make makefile powershell ps1 r perl nix
sql/standardSQL sql
sql/pgSQL postgresql mysql sqlite
lua/lua
ruby/ruby rb elixir ex julia jl
yaml/yaml yml
toml/toml
properties/properties ini cfg conf env
css/css
css/sCSS scss
css/less
xml/xml svg
xml/html htm xhtml
diff/diff patch`;
const PLACES = new Map(
  MODES.split("\n").flatMap((line) => {
    const [place, ...names] = line.split(" ");
    return [place.split("/")[1].toLowerCase(), ...names].map((name) => [name, place.split("/")]);
  }),
);
// The first of a line is a class, the others are names of CodeMirror's for what has its colour.
const STYLES = `k keyword atom bool type typeName builtin tag tagName modifier
s string attributeValue regexp
c comment meta
n number unit
f def property propertyName attribute attributeName
add inserted
del deleted`;
const KINDS = Object.fromEntries(
  STYLES.split("\n").flatMap((line) => {
    const [kind, ...names] = line.split(" ");
    return names.map((name) => [name, kind]);
  }),
);

/** Returns the mode of a language, or undefined. */
export async function modeOf(name) {
  const place = PLACES.get(name.toLowerCase());
  return place && (await import(`../vendor/modes/${place[0]}.js`))[place[1]];
}

/** Returns { parts: [[kind, text]], after }. `state` is that after the line before, null for the first. */
export function highlight(line, mode, state) {
  const after = state ? copy(mode, state) : (mode.startState?.(2) ?? {});
  if (!line) mode.blankLine?.(after, 2);
  const stream = new Stream(line);
  const parts = [];
  for (let idle = 0; !stream.eol() && idle < 10; idle++) {
    const style = mode.token(stream, after) ?? "";
    if (stream.pos === stream.start) continue; // a mode may change its state without reading
    const [first, second] = style.split(/[. ]/);
    const kind = second === "definition" ? "f" : second === "standard" ? "k" : (KINDS[first] ?? "");
    if (kind === parts.at(-1)?.[0]) parts.at(-1)[1] += stream.current();
    else parts.push([kind, stream.current()]);
    stream.start = stream.pos;
    idle = 0;
  }
  if (!stream.eol()) parts.push(["", line.slice(stream.pos)]);
  return { parts, after };
}

function copy(mode, state) {
  if (mode.copyState) return mode.copyState(state);
  return Object.fromEntries(Object.entries(state).map(([name, value]) => [name, Array.isArray(value) ? [...value] : value]));
}

/** What a mode reads: the methods of CodeMirror's StringStream. */
class Stream {
  constructor(string) {
    Object.assign(this, { string, start: 0, pos: 0, indentUnit: 2 });
  }
  eol = () => this.pos >= this.string.length;
  sol = () => this.pos === 0;
  peek = () => this.string[this.pos];
  next = () => this.string[this.pos++];
  current = () => this.string.slice(this.start, this.pos);
  column = () => this.start;
  indentation = () => this.string.length - this.string.trimStart().length;
  skipToEnd = () => void (this.pos = this.string.length);
  backUp = (count) => void (this.pos -= count);
  eatSpace = () => this.eatWhile(/\s/);
  eat(wanted) {
    const one = this.peek();
    const isFit = typeof wanted === "string" ? one === wanted : one && (wanted.test ? wanted.test(one) : wanted(one));
    return isFit ? this.next() : undefined;
  }
  eatWhile(wanted) {
    const before = this.pos;
    while (this.eat(wanted));
    return this.pos > before;
  }
  skipTo(character) {
    const found = this.string.indexOf(character, this.pos);
    if (found >= 0) this.pos = found;
    return found >= 0;
  }
  match(wanted, isTaken = true, isAnyCase = false) {
    if (typeof wanted === "string") {
      const part = this.string.substr(this.pos, wanted.length);
      if (isAnyCase ? part.toLowerCase() !== wanted.toLowerCase() : part !== wanted) return null;
      if (isTaken !== false) this.pos += wanted.length;
      return true;
    }
    const found = this.string.slice(this.pos).match(wanted);
    if (found?.index > 0) return null;
    if (found && isTaken !== false) this.pos += found[0].length;
    return found;
  }
}
