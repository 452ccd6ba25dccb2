"""Static checks of a Lark grammar in llguidance's dialect: finds its JSON schemas, and rules that never end.

The reader follows parser/src/lark of llguidance, as far as it takes to find alternatives; syntax errors are left to the
library, which describes them better.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from eyas.gateway.http.body import untyped_number

__all__ = ["can_end", "schemas_of"]

TOKEN = re.compile(
    r"""
      (?P<skip> (?:\#|//)[^\n]* | [ \t]+ )
    | (?P<newline> \s+ )
    | (?P<value> "(?:\\.|[^"\\])*"i? | /(?:\\.|[^/\\])+/[imslux]* | <[^<>\s]+> | @[\w-]+ | _?[A-Z][_A-Z0-9-]* )
    | (?P<rule> !?[_?]?[a-z][_a-z0-9-]* )
    | (?P<number> [+-]?\d+ )
    | (?P<keyword> %\w+ )
    | (?P<sign> :: | -> | \.\. | . )
    """,
    re.VERBOSE | re.DOTALL,
)
WITH_JSON = ("%json", "%regex", "%llguidance")
DECODER = json.JSONDecoder(parse_float=untyped_number)

Alternatives: TypeAlias = list[list["Symbol"]]


class Token(NamedTuple):
    kind: str
    text: str
    json: Any = None


class Symbol(NamedTuple):
    """A rule by its name, a group, or with neither a terminal, which always ends."""

    rule: str | None = None
    group: Alternatives | None = None


def schemas_of(grammar: str) -> Iterator[Mapping[str, Any]]:
    """Return the JSON schemas in a grammar. Raises ValueError for one with a number that no float holds."""
    for token in _tokens(grammar):
        if token.text == "%json" and isinstance(token.json, Mapping):
            yield token.json


def can_end(grammar: str) -> bool:
    """Whether the grammar matches any finite text: False if the rule `start` always leads to another rule."""
    tokens = list(_tokens(grammar))
    if any(token.text in ("::", "%if", "%lark", "%override") for token in tokens):
        return True  # not looked into
    rules = _Reader(tokens).rules()
    waiting: dict[str, list[str]] = {}
    ending: set[str] = set()
    todo = list(rules)
    while todo:  # a rule is visited again only when one that it depends on turns out to end
        name = todo.pop()
        if name in ending:
            continue
        missing = _missing(rules[name], ending, rules)
        if missing is None:
            ending.add(name)
            todo += waiting.pop(name, ())
        else:
            for other in missing:
                waiting.setdefault(other, []).append(name)
    return "start" not in rules or "start" in ending


def _missing(alternatives: Alternatives, ending: set[str], rules: Mapping[str, Alternatives]) -> set[str] | None:
    """Return None if one alternative ends; else rules of which one must end first."""
    missing: set[str] = set()
    for alternative in alternatives:
        own: set[str] = set()
        for symbol in alternative:
            if symbol.rule is not None and symbol.rule in rules and symbol.rule not in ending:
                own.add(symbol.rule)
            elif symbol.group is not None:
                own |= _missing(symbol.group, ending, rules) or set()
        if not own:
            return None
        missing |= own
    return missing


def _tokens(grammar: str) -> Iterator[Token]:
    at = 0
    while match := TOKEN.match(grammar, at):
        at, kind, text, value = match.end(), match.lastgroup or "", match[0], None
        if text in WITH_JSON:
            while grammar[at : at + 1].isspace():
                at += 1
            with suppress(json.JSONDecodeError, RecursionError):  # the library refuses it
                value, at = DECODER.raw_decode(grammar, at)
        if kind != "skip":
            yield Token(kind, text, value)


class _Reader:
    """Reads rules and their alternatives. Never fails: a grammar that it misreads has been refused by the library."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def rules(self) -> dict[str, Alternatives]:
        found: dict[str, Alternatives] = {}
        while self._at < len(self._tokens):
            name = self._next()
            if name.kind in ("rule", "value") and self._skip_to_colon():
                alternatives = self._alternatives()
                if name.kind == "rule":
                    found.setdefault(name.text.lstrip("!?"), []).extend(alternatives)
        return found

    def _skip_to_colon(self) -> bool:
        """Skip parameters, priority and attributes, on one line."""
        at = self._at
        while at < len(self._tokens) and self._tokens[at].kind != "newline":
            at += 1
            if self._tokens[at - 1].text == ":":
                self._at = at
                return True
        return False

    def _alternatives(self) -> Alternatives:
        alternatives: Alternatives = [[]]
        while self._at < len(self._tokens):
            token = self._next()
            if token.kind == "newline":
                if self._peek() != "|":
                    break
            elif token.text == "|":
                alternatives.append([])
            elif token.text in ")]}":
                break
            elif token.text == "->":
                self._next()
            elif token.text in ("(", "["):
                group = self._alternatives()
                alternatives[-1] += self._repeated(Symbol(group=group), is_optional=token.text == "[")
            elif token.kind == "rule":
                alternatives[-1] += self._repeated(Symbol(rule=token.text.lstrip("!?")))
            elif token.kind == "value" or token.text in WITH_JSON:
                self._repeated(Symbol())
        return alternatives

    def _repeated(self, symbol: Symbol, *, is_optional: bool = False) -> list[Symbol]:
        """Read a repetition (`?`, `*`, `+`, `~ n`, `{n,m}`); return the symbol, or nothing if it may be left out."""
        sign = self._peek()
        if sign in ("?", "*", "+"):
            self._next()
            is_optional |= sign != "+"
        elif sign in ("~", "{"):
            self._next()
            least = self._next().text
            is_optional |= least in (",", "0")
            while sign == "{" and least != "}" and self._at < len(self._tokens) and self._next().text != "}":
                pass
        return [] if is_optional else [symbol]

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else Token("newline", "")

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""
