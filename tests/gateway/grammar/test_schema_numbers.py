"""Numbers of schemas: enforced to the last digit, against decimal arithmetic, or refused by name. Never rounded."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.grammar import is_accepted

from eyas.base.bundled import DEMO
from eyas.base.errors import InvalidRequest
from eyas.gateway.grammar.checker import GrammarChecker, JsonSchema, Lark, raw_grammar
from eyas.gateway.http.body import decode
from eyas.gateway.openai.structured import StructuredOutputs

CHECKER = GrammarChecker(DEMO / "tokenizer.json")
EDGES = [2**31, 2**32, 2**53, 2**63, 2**64, 10**18, 10**19]
NEAR_EDGES = st.tuples(st.sampled_from(EDGES), st.integers(-3, 3), st.sampled_from((1, -1)))
INTEGERS = st.integers() | NEAR_EDGES.map(lambda near: near[2] * (near[0] + near[1]))
DIGITS = st.from_regex(r"-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,22})?", fullmatch=True)
FACTORS = st.integers(1, 300).map(str) | st.from_regex(r"[0-9]\.[0-9]{1,2}", fullmatch=True)


def taken(text):
    """A schema as it comes over HTTP, checked; None if it is refused."""
    try:
        schema = decode(f'{{"json": {text}}}'.encode(), StructuredOutputs).json
        CHECKER.check_answer(JsonSchema(schema), param="p")
    except InvalidRequest:
        return None
    return raw_grammar(JsonSchema(schema))


def plain(value):
    """A number without an exponent, and without zeros at its end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def accepts(grammar, value):
    return is_accepted(grammar, f"{plain(value)}<|return|>")


@settings(max_examples=60, deadline=None)
@given(INTEGERS, st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const"]))
def test_integers(bound, keyword):
    grammar = taken(f'{{"type": "integer", "{keyword}": {bound}}}')
    holds = abs(bound) < 2**53 or (keyword == "maximum" and bound == 2**63 - 1)
    assert (grammar is not None) == holds
    for value in range(bound - 2, bound + 3) if holds else ():
        wanted = {
            "minimum": value >= bound,
            "maximum": value <= bound,
            "exclusiveMinimum": value > bound,
            "exclusiveMaximum": value < bound,
            "const": value == bound,
        }[keyword]
        assert accepts(grammar, Decimal(value)) == wanted, (keyword, bound, value)


@settings(max_examples=60, deadline=None)
@given(DIGITS, st.sampled_from(["minimum", "maximum", "const"]))
def test_decimals(text, keyword):
    grammar = taken(f'{{"type": "number", "{keyword}": {text}}}')
    bound = Decimal(text)
    if grammar is None:
        assert len(text.strip("-0.")) > 15 or abs(bound) >= 2**53
        return
    bound = Decimal(repr(float(text)))  # where 17 digits name the same float as fewer
    assert len(text.strip("-0.")) <= 18 or bound == Decimal(text)
    for value in (bound, bound + Decimal("1e-25"), bound - Decimal("1e-25")):
        wanted = {"minimum": value >= bound, "maximum": value <= bound, "const": value == bound}[keyword]
        assert accepts(grammar, value) == wanted or value == 0 == bound, (keyword, text, value)


@settings(max_examples=30, deadline=None)
@given(FACTORS, st.integers(0, 1000), st.integers(1, 50))
def test_factors(text, times, beside):
    factor = Decimal(text)
    kind = "integer" if factor % 1 == 0 else "number"  # the library fails at 0 for a number and a whole factor
    grammar = taken(f'{{"type": "{kind}", "multipleOf": {text}}}') if factor else None
    if grammar is not None:
        multiple, other = factor * times, factor * times + Decimal("1e-18") * beside
        assert accepts(grammar, multiple) or is_accepted(grammar, f"{multiple:f}<|return|>"), (text, multiple)
        assert not accepts(grammar, other), (text, other)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"type": "integer", "minimum": 1e400}', "out of range"),
        ('{"type": "number", "maximum": 1e-400}', "out of range"),
        ('{"enum": [1, 18446744073709551617]}', r"\$.enum: 18446744073709551617 cannot be enforced exactly"),
        ('{"const": {"a": [9007199254740993]}}', r"\$.const: 9007199254740993 cannot"),
        ('{"properties": {"a": {"const": 0.1000000000000000000001}}}', "more digits than a number holds"),
        ('{"type": "number", "multipleOf": 0.30000000000000004}', r"\$.multipleOf: 0.30000000000000004 cannot"),
        # This one ended the process: the library overflowed its stack.
        ('{"type": "integer", "minimum": -9223372036854775808, "maximum": -9223372036854775808}', r"\$.m\w+: -9223"),
        ('{"x-a": {"type": "integer", "minimum": -1e19, "maximum": -1e19}, "$ref": "#/x-a"}', "cannot be enforced"),
        ('{"allOf": [{"type": "integer", "multipleOf": 65537}, {"multipleOf": 65539}]}', "common multiple"),
        ('{"type": "string", "maxLength": 4294967297}', r"\$.maxLength: lengths of a schema go up to 2147483647"),
    ],
)
def test_what_would_be_rounded_is_refused_by_name(text, reason):
    with pytest.raises(InvalidRequest, match=reason):
        CHECKER.check_answer(JsonSchema(decode(f'{{"json": {text}}}'.encode(), StructuredOutputs).json), param="p")
    with pytest.raises(InvalidRequest, match=reason):  # a grammar may hold schemas too
        CHECKER.check_answer(Lark(f"start: A | %json {text}\nA: /a/"), param="p")


def test_numbers_that_say_nothing_about_values_may_be_any():
    assert taken(json.dumps({"type": "integer", "default": 2**70, "examples": [2**64, 1e300], "maximum": 7}))
