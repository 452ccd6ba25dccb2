// Colours of code, line by line: words, strings, comments and numbers of common languages. Each character is read once.
//
// A state is what goes on in the next line: null, or { kind, end } of a comment or a string.

const words = (text) => new Set(text.split(" "));
const QUOTES = [`"`, `'`];
const C_LIKE = { line: ["//"], block: [["/*", "*/"]], quotes: QUOTES };
const HASH = { line: ["#"], quotes: QUOTES };
// One list for all languages with braces: a name that is a keyword in another of them is coloured, too.
const BRACES = words(
  "abstract any as async await auto bool boolean break byte case catch char class const constexpr constructor continue crate declare default defer delete do double dyn else enum explicit export extends extern f32 f64 fallthrough false final finally float float32 float64 fn for from func function get go goto guard i32 i64 if impl implements import in init inline instanceof int int32 int64 interface is let long loop map match mod move mut namespace new nil noexcept null nullptr number of operator override package private protected protocol pub public range readonly ref register return self Self set short signed sizeof static str string String struct super switch template this throw throws trait true try type typedef typename typeof u8 u32 u64 uint8_t uint32_t uint64_t undefined union unsafe unsigned use using usize val var virtual void volatile when where while with yield __global__ __device__ __shared__",
);
const ENDS = words(
  "alias and begin break case class def do else elseif elsif end ensure false fn for function if in local module next nil not or raise repeat require rescue return self super then true unless until when while yield",
);

const LANGUAGES = {
  python: {
    ...{ line: ["#"], long: [`"""`, `'''`], quotes: QUOTES },
    words: words(
      "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return self try while with yield True False None",
    ),
  },
  javascript: { ...C_LIKE, long: ["`"], words: BRACES },
  c: { ...C_LIKE, directive: "#", words: BRACES },
  rust: { ...C_LIKE, quotes: [`"`], words: BRACES },
  shell: {
    ...HASH,
    variable: "$",
    words: words(
      "case cd do done echo elif else esac exit export fi for function if in local read return set shift source sudo then trap unset until while",
    ),
  },
  sql: {
    ...{ line: ["--"], block: [["/*", "*/"]], quotes: QUOTES, isAnyCase: true },
    words: words(
      "all alter and as asc begin between by case check column commit constraint create cross default delete desc distinct drop else end exists foreign from full group having in index inner insert int integer into is join key left like limit not null offset on or order outer primary references right rollback select set table text then union unique update using values varchar view when where with",
    ),
  },
  lua: { line: ["--"], quotes: QUOTES, words: ENDS },
  ruby: { ...HASH, words: ENDS },
  json: { quotes: [`"`], words: words("true false null"), hasKeys: true },
  yaml: { ...HASH, words: words("true false null yes no"), hasKeys: true },
  toml: { ...HASH, line: ["#", ";"], long: [`"""`, `'''`], words: words("true false"), hasKeys: true },
  css: { block: [["/*", "*/"]], quotes: QUOTES, words: words("important from to and not only"), hasKeys: true },
  html: { block: [["<!--", "-->"]], quotes: QUOTES, words: new Set(), hasTags: true },
  diff: { words: new Set(), isDiff: true },
};

const NAMES = {
  python: "py python3 pycon triton",
  javascript: "js jsx ts tsx typescript mjs go golang",
  c: "cpp c++ cc cxx h hpp cuda cu java kotlin kt scala cs csharp c# php dart swift groovy objc",
  rust: "rs",
  shell: "sh bash zsh console fish dockerfile docker make makefile powershell ps1 r perl nix",
  sql: "postgresql mysql sqlite",
  lua: "haskell hs",
  ruby: "rb elixir ex julia jl",
  json: "jsonc json5 jsonl",
  yaml: "yml",
  toml: "ini cfg conf properties env",
  css: "scss less",
  html: "xml svg vue xhtml",
  diff: "patch",
};
const BY_NAME = new Map(
  Object.entries(NAMES).flatMap(([name, others]) => [name, ...others.split(" ")].map((one) => [one, LANGUAGES[name]])),
);

/** Returns the rules of a language, or undefined. */
export const languageOf = (name) => (name ? BY_NAME.get(name.toLowerCase()) : undefined);

const WORD = /[\p{L}_][\p{L}\p{N}_]*/uy;
const NUMBER = /(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w{0,4}/y;
const KEY = /[\w.-]+(?=\s{0,8}[:=])/y;
const TAG = /<\/?[\w:-]+|\/?>/y;

/** Returns { parts: [[kind, text]], after }; kinds are k(eyword), s(tring), c(omment), n(umber), f(unction), "" and more. */
export function highlight(line, language, state) {
  if (language.isDiff) return { parts: [[diffKind(line), line]], after: null };
  const parts = [];
  let at = 0;
  let plain = 0;
  const put = (kind, end) => {
    if (plain < at) parts.push(["", line.slice(plain, at)]);
    parts.push([kind, line.slice(at, end)]);
    at = plain = end;
  };
  /** Takes a comment or string that ends with a mark, here or in a later line. */
  const region = (kind, close, from) => {
    const end = line.indexOf(close, from);
    put(kind, end < 0 ? line.length : end + close.length);
    return end < 0 ? { kind, end: close } : null;
  };
  if (state) {
    const open = region(state.kind, state.end, 0);
    if (open) return { parts, after: same(state, open) };
  }
  if (language.directive && !state && line.trimStart().startsWith(language.directive)) {
    at = line.length - line.trimStart().length;
    const word = /^#\s*\w*/.exec(line.slice(at))[0];
    put("k", at + word.length);
  }
  while (at < line.length) {
    const one = line[at];
    const starts = (mark) => line.startsWith(mark, at);
    const block = language.block?.find(([open]) => starts(open));
    if (block) {
      const open = region("c", block[1], at + block[0].length);
      if (open) return { parts, after: keep(open) };
      continue;
    }
    if (language.line?.some((mark) => starts(mark) && (mark !== "#" || at === 0 || /[\s({[;,]/.test(line[at - 1])))) {
      put("c", line.length);
      continue;
    }
    const long = language.long?.find(starts);
    if (long) {
      const open = region("s", long, at + long.length);
      if (open) return { parts, after: keep(open) };
      continue;
    }
    if (language.quotes?.includes(one)) {
      const end = stringEnd(line, at, one);
      const isKey = language.hasKeys && /^\s{0,8}:/.test(line.slice(end, end + 10));
      put(isKey ? "f" : "s", end);
      continue;
    }
    if (language.hasTags && one !== " ") {
      const tag = match(TAG, line, at);
      if (tag) {
        put("k", at + tag.length);
        continue;
      }
    }
    if (language.variable === one) {
      const name = /^\$(?:\w+|\{[^}]{0,80}\}|[@#?*!$-])/.exec(line.slice(at, at + 90));
      if (name) {
        put("f", at + name[0].length);
        continue;
      }
    }
    const key = language.hasKeys && match(KEY, line, at);
    if (key && !language.words.has(key)) {
      put("f", at + key.length);
      continue;
    }
    if (one >= "0" && one <= "9") {
      put("n", at + match(NUMBER, line, at).length);
      continue;
    }
    const word = match(WORD, line, at);
    if (!word) {
      at += 1;
      continue;
    }
    if (language.words.has(language.isAnyCase ? word.toLowerCase() : word)) put("k", at + word.length);
    else if (line[at + word.length] === "(") put("f", at + word.length);
    else at += word.length;
  }
  if (plain < at) parts.push(["", line.slice(plain, at)]);
  return { parts, after: null };
}

function match(pattern, line, at) {
  pattern.lastIndex = at;
  return pattern.exec(line)?.[0];
}

// One object for each state, so that states can be compared.
const states = new Map();
function keep(open) {
  const name = `${open.kind}${open.end}`;
  if (!states.has(name)) states.set(name, open);
  return states.get(name);
}
const same = (state, open) => (state.end === open.end ? state : keep(open));

function stringEnd(line, at, quote) {
  for (let end = at + 1; end < line.length; end++) {
    if (line[end] === "\\") end++;
    else if (line[end] === quote) return end + 1;
  }
  return line.length;
}

function diffKind(line) {
  if (line.startsWith("@@")) return "k";
  if (/^(\+\+\+|---) /.test(line)) return "c";
  return { "+": "add", "-": "del" }[line[0]] ?? "";
}
