"""Grammars that recurse as deep as their size lets them: refused or compiled, in a process that must survive."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.base.harmony.grammar_limits import with_deep_stack

MAX_CHARS = 100_000  # of a Lark grammar that comes over HTTP


def references(links: int) -> str:
    defs = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(links)}
    return "start: %json " + json.dumps({"$defs": {**defs, f"d{links}": {"type": "null"}}, "$ref": "#/$defs/d0"})


def rules(links: int, *, terminals: bool = False) -> str:
    letter = "R" if terminals else "r"
    chain = "\n".join(f'{letter}{i}: ("a" {letter}{i + 1} "c")?' for i in range(links))
    return f'start: {letter}0\n{chain}\n{letter}{links}: "c"'


def nested(begin: str, end: str) -> str:
    count = MAX_CHARS // len(begin + end)
    return f'start: {begin * count}"a"{end * count}'


SHAPES = {
    "references": references(1500),
    "references of a large schema": references(6000),
    "rules": rules(3000),
    "shortest rules": "start: r0\n" + "\n".join(f"r{i}:r{i + 1}" for i in range(70_000)) + '\nr70000: "c"',
    "terminals": rules(4000, terminals=True),
    "parentheses": nested("(", ")"),
    "brackets": nested("[", "]"),
    "optional": nested("(", ")?"),
    "grammars in grammars": nested("%lark {\nstart: ", "\n}"),
    "open": nested("(", ""),
    "schemas": "start: %json " + '{"items":' * 10_000 + "{}" + "}" * 10_000,
    "groups of a regex": f"start: /{'(' * 49_000}a{')' * 49_000}/",
    "groups and alternatives": f"start: /{'(a|' * 24_000}b{')' * 24_000}/",
    "repeated groups": f"start: /{'(a' * 24_000}b{')?' * 24_000}/",
    "classes of a regex": f"start: /{'[a' * 30_000}{']' * 30_000}/",
    "signs of a regex": f"start: /a{'?' * 99_000}/",
    "look-aheads": f"start: /{'(?=' * 20_000}a{')' * 20_000}/",
    "alternatives": f"start: /{'a|' * 49_000}b/",
    "flags": f"start: /{'(?i)' * 20_000}a/",
}  # fmt: skip
SCRIPT = """
import json, sys
from eyas.base.bundled import DEMO
from eyas.base.errors import InvalidRequest
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.engine.sequences.constraint import GrammarCache, GrammarMatcher, num_words
from eyas.gateway.grammar.checker import GrammarChecker
import numpy as np

codec, checker = Tokenizer.load(DEMO), GrammarChecker(DEMO / "tokenizer.json")
eos = [codec.special["<|return|>"]]
cache = GrammarCache(DEMO / "tokenizer.json", vocab_size=codec.vocab_size, eos_ids=eos)
for name, grammar in json.load(sys.stdin).items():
    try:
        checker.check(grammar, param="p")
        verdict = "taken"
    except InvalidRequest:
        verdict = "refused"
    try:
        matcher = GrammarMatcher(cache.compile(grammar).result(), eos)
        list(matcher.rows([], np.zeros((1, num_words(codec.vocab_size)), dtype=np.uint32)))
        matcher.advance(codec.encode("a"))
        list(matcher.rows([], np.zeros((1, num_words(codec.vocab_size)), dtype=np.uint32)))
        compiled = "taken"
    except InvalidRequest:
        compiled = "refused"
    print(json.dumps([name, verdict, compiled]), flush=True)
"""


# Taken and refused, of each kind: Lark, JSON schemas, regular expressions.
SOME = ("references", "rules", "terminals", "parentheses", "grammars in grammars", "schemas", "groups of a regex")


@pytest.mark.parametrize("names", [SOME, pytest.param(tuple(SHAPES), marks=pytest.mark.slow)], ids=["some", "all"])
def test_nothing_overflows_a_stack(names):
    shapes = json.dumps({name: SHAPES[name] for name in names})
    run = subprocess.run([sys.executable, "-c", SCRIPT], input=shapes, capture_output=True, text=True)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert (run.returncode, [name for name, _, _ in lines]) == (0, [*names]), run.stderr[-500:]
    verdicts = {name: verdict for name, verdict, _ in lines}
    assert verdicts == {name: compiled for name, _, compiled in lines}
    assert verdicts["rules"] == verdicts["references"] == verdicts["terminals"] == "taken"
    assert verdicts["groups of a regex"] == verdicts["parentheses"] == "refused"


@settings(max_examples=20, deadline=None)
@given(st.integers() | st.text())
def test_a_deep_stack_hands_back_what_is_returned_or_raised(value):
    before = threading.stack_size()
    assert with_deep_stack(lambda: value) == value
    with pytest.raises(KeyError) as caught:
        with_deep_stack(lambda: {}[value])
    assert caught.value.args == (value,)
    assert threading.stack_size() == before
