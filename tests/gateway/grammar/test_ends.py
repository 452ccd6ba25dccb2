"""Grammars and schemas that cannot come to an end are refused, with the reason; all others are taken."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.bundled import DEMO
from eyas.base.errors import InvalidRequest
from eyas.gateway.grammar.checker import GrammarChecker, JsonSchema, Lark
from eyas.gateway.grammar.lark_check import can_end
from eyas.gateway.grammar.schema_check import check_followable
from eyas.gateway.grammar.schema_ends import can_end as schema_can_end

CHECKER = GrammarChecker(DEMO / "tokenizer.json")
ENDLESS = [
    'start: ("a" start)',
    'start: /[a-z]/ start',
    'start: "x" b\nb: "y" c | "z" c\nc[capture]: b "w"',
    'start: a b?\na: ("x" | a) start+ // comment: | "x"\nb: "y"',
    'start: start | "(" start ")"',
    "?start: start{2,3} A\nA: /b/ | \"|\"",
]  # fmt: skip
ENDING = [
    'start: "a" start | "b"',
    'start: ("a" start)?',
    'start: ["a" start]',
    'start: "a" start*',
    'start: b{0,3}\nb: "x" b',
    'start: a\n  | "b"\na: "x" a',
    'start: "|" A # comment\nA: /a|b\\//',
    'start: x "c"\nx: "b" x | %json {"type": "object", "properties": {"a": {"enum": ["|", "}"]}}}',
    "start: <|constrain|> b -> name\nb[lazy]: /.*x/",
    'start: %regex {"substring_words": "a b | c"}',
    "start: /a/ ~ 2..3",
]


@pytest.mark.parametrize("grammar", ENDLESS)
def test_a_grammar_without_end_is_refused(grammar):
    with pytest.raises(InvalidRequest, match="never ends"):
        CHECKER.check_answer(Lark(grammar), param="p")


@pytest.mark.parametrize("grammar", ENDING)
def test_all_other_grammars_are_taken(grammar):
    CHECKER.check_answer(Lark(grammar), param="p")


NAMES = [*"abcdef"]
PARTS = st.lists(st.sampled_from([*NAMES, '"x"']), min_size=1, max_size=3)
RULES = st.fixed_dictionaries({name: st.lists(PARTS, min_size=1, max_size=3) for name in NAMES})


@given(RULES)
def test_rules_end_where_repeated_looking_finds_it(rules):
    """Against the definition: a rule ends if one of its alternatives has only what ends already."""
    ending, before = {'"x"'}, -1
    while len(ending) > before:
        before = len(ending)
        ending |= {name for name, parts in rules.items() if any(ending.issuperset(part) for part in parts)}
    lines = [f"{name}: {' | '.join(map(' '.join, alternatives))}" for name, alternatives in rules.items()]
    assert can_end("start: a\n" + "\n".join(lines)) == ("a" in ending)


@given(RULES)
def test_schemas_end_likewise(rules):
    """Rules as schemas: alternatives are objects that require all of their parts."""

    def schema(part):
        inner = {
            f"p{i}": {"type": "null"} if name == '"x"' else {"$ref": f"#/$defs/{name}"} for i, name in enumerate(part)
        }
        return {"type": "object", "properties": inner, "required": [*inner]}

    defs = {name: {"anyOf": [schema(part) for part in parts]} for name, parts in rules.items()}
    lines = [f"{name}: {' | '.join(map(' '.join, alternatives))}" for name, alternatives in rules.items()]
    assert schema_can_end({"$defs": defs, "$ref": "#/$defs/a"}) == can_end("start: a\n" + "\n".join(lines))


NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        (NODE, False),
        (NODE | {"required": []}, True),
        (NODE | {"type": ["object", "null"]}, True),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"type": "array", "items": {"$ref": "#"}}, True),
        ({"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2}, False),
        ({"allOf": [{"type": "object"}, {"$ref": "#/$defs/n"}], "$defs": {"n": NODE}}, False),
    ],
)
def test_schemas_that_require_themselves(schema, ends):
    assert schema_can_end(schema) == ends
    if not ends:
        with pytest.raises(InvalidRequest, match="requires another"):
            CHECKER.check_answer(JsonSchema(schema), param="p")


WORDS = ["$ref", "allOf", "anyOf", "type", "properties", "required", "items", "prefixItems", "minItems", "multipleOf"]
WORDS += ["minimum", "const", "object", "array", "#", "#/items", "#/allOf/0"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(WORDS), ANY_JSON, max_size=5))
def test_whatever_stands_where_a_schema_should_is_taken_or_refused(schema):
    with suppress(InvalidRequest):
        check_followable(schema, param="p")


def test_references_that_double_at_each_level_are_refused_before_they_are_compiled():
    """They took all the memory there is."""
    defs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    schema = {"$defs": defs | {"d40": {"type": "string", "pattern": "^a"}}, "$ref": "#/$defs/d0"}
    for response in (JsonSchema(schema), Lark("start: %json " + str(schema).replace("'", '"'))):
        with pytest.raises(InvalidRequest, match="more than 1000 schemas together"):
            CHECKER.check_answer(response, param="p")
