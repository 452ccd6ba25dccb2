"""Schemas by how far they reach: white space of pretty printing, optional properties, chains of references."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.grammar import FINAL, VOCABULARY, allowed, call, spelled, start

from eyas.base.bundled import DEMO
from eyas.base.errors import InvalidRequest
from eyas.base.harmony.grammar_limits import parser_limits
from eyas.base.harmony.tools import FunctionTool
from eyas.gateway.grammar.checker import Choice, GrammarChecker, JsonObject, JsonSchema, answer_grammar
from eyas.gateway.grammar.schema_extent import extent_of

STR = {"type": "string"}
LEAVES = {"string": "x", "integer": 7, "boolean": True, "null": None}


def an_object(properties: dict[str, Any], required: list[str], extra: object = False) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": extra}


def pairs(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """A schema and a document that is valid under it, around another such pair."""
    objects = st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
        lambda parts: (
            an_object({name: schema for name, (schema, _) in parts.items()}, [*parts]),
            {name: document for name, (_, document) in parts.items()},
        )
    )
    arrays = st.tuples(inner, st.integers(0, 2)).map(
        lambda part: ({"type": "array", "items": part[0][0]}, [part[0][1]] * part[1])
    )
    alternatives = inner.map(lambda pair: ({"anyOf": [{"const": "other"}, pair[0]]}, pair[1]))
    open_objects = inner.map(lambda pair: ({"type": "object"}, {"k": pair[1]}))
    return objects | arrays | alternatives | open_objects


PAIRS = st.recursive(
    st.sampled_from([*LEAVES.items()]).map(lambda leaf: ({"type": leaf[0]}, leaf[1])), pairs, max_leaves=6
)


def nesting(document: object) -> int:
    inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else None
    return 0 if inner is None else 1 + max(map(nesting, inner), default=0)


def accepts(grammar: str, text: str) -> bool:
    matcher = start(grammar)
    return all(matcher.consume_token(token) for token in spelled(f"{FINAL}{text}<|return|>")) and matcher.is_stopped()


@settings(max_examples=60, deadline=None)
@given(PAIRS)
def test_valid_documents_are_accepted_as_json_dumps_writes_them(pair):
    schema, document = pair
    grammar = answer_grammar(response=JsonSchema(schema))
    if nesting(document) > 8:  # more than is assumed of a schema that bounds nothing
        return
    for options in ({}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}, {"separators": (",", ":")}):
        assert accepts(grammar, json.dumps(document, **options)), options


def test_indentation_ends_where_the_schema_does():
    grammar = answer_grammar(response=JsonSchema(an_object({"a": an_object({"b": STR}, ["b"])}, ["a"])))
    assert accepts(grammar, '{\n    "a": {\n        "b": "x"\n    }\n}')
    assert not accepts(grammar, '{\n    "a": {\n         "b": "x"\n    }\n}')


@pytest.mark.parametrize("gap", [" ", "\t", "\n" + 33 * " "])
def test_nothing_to_get_lost_in_before_a_colon(gap):
    grammar = answer_grammar(response=JsonObject())
    assert not accepts(grammar, f'{{"a"{gap}:1}}')
    assert not accepts(grammar, f'{{"a":1{gap},"b":2}}')


def chain(links: int, keyword: str = "items") -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{links}": {"type": "null"}}
    for i in range(links):
        inner = {"$ref": f"#/$defs/d{i + 1}"}
        defs[f"d{i}"] = {"type": "array", "items": inner} if keyword == "items" else {keyword: [inner]}
    return {"$defs": defs, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize("keyword", ["items", "anyOf", "allOf"])
def test_chains_of_references_are_bounded(keyword):
    checker = GrammarChecker(DEMO / "tokenizer.json")
    checker.check_answer(JsonSchema(chain(90, keyword)), param="p")
    with pytest.raises(InvalidRequest, match="200 levels, references followed") as refused:
        checker.check_answer(JsonSchema(chain(1500, keyword)), param="p")
    assert refused.value.param == "p"


@pytest.mark.parametrize(
    "reference", ["#/a~1b", "#/%24defs/x/0", "#/nope", "#", "", "#/$defs/9", "#/$defs/" + "9" * 5000]
)
def test_pointers_of_all_kinds_are_followed_or_left_to_the_compiler(reference):
    schema = {"$ref": reference, "a/b": STR, "$defs": {"x": [STR]}}
    assert extent_of(schema, param="p").levels <= 3


def run_through(schema: dict[str, Any], document: object) -> None:
    follow(answer_grammar(response=JsonSchema(schema)), f"{FINAL}{json.dumps(document)}<|return|>")


def follow(grammar: str, text: str) -> None:
    """Masks at each token, under the engine's limits."""
    limits = llguidance.LLParserLimits(**parser_limits(grammar))
    matcher = llguidance.LLMatcher(VOCABULARY, grammar, log_level=0, limits=limits)
    for token in spelled(text):
        assert token in allowed(matcher)
        assert matcher.consume_token(token)
    assert matcher.is_stopped()


def many_optional(count: int, extra: object, prefix: str = "p") -> dict[str, Any]:
    return an_object({f"{prefix}{i}": STR for i in range(count)}, [], extra)


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("deep", [False, True])
def test_what_the_check_takes_the_engine_follows(extra, deep):
    """100 optional properties work throughout, and so does whatever else the check lets pass."""
    checker, taken = GrammarChecker(DEMO / "tokenizer.json"), []
    for count in (100, 103, 106, 109, 130, 300):
        schema, document = many_optional(count, extra), {f"p{i}": "v" for i in range(0, count, 9)}
        if deep:
            schema, document = an_object({"o": schema}, ["o"]), {"o": document}
        try:
            checker.check_answer(JsonSchema(schema), param="p")
        except InvalidRequest:
            continue
        taken.append(count)
        run_through(schema, document)
    assert taken[0] == 100 and taken[-1] < 130


def test_alternatives_count_together():
    checker = GrammarChecker(DEMO / "tokenizer.json")
    for count, fits in ((45, True), (60, False)):
        schema = {"anyOf": [many_optional(count, False, "p"), many_optional(count, False, "q")]}
        if fits:
            checker.check_answer(JsonSchema(schema), param="p")
            run_through(schema, {f"q{i}": "v" for i in range(0, count, 5)})
        else:
            with pytest.raises(InvalidRequest, match="optional"):
                checker.check_answer(JsonSchema(schema), param="p")


def test_a_hundred_tagged_alternatives_work():
    kinds = [an_object({"kind": {"const": f"k{i}"}, "v": STR}, ["kind", "v"]) for i in range(100)]
    schema = {"type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/k{i}"} for i in range(100)]}}
    schema["$defs"] = {f"k{i}": kind for i, kind in enumerate(kinds)}
    GrammarChecker(DEMO / "tokenizer.json").check_answer(JsonSchema(schema), param="p")
    run_through(schema, [{"kind": "k99", "v": "x"}, {"kind": "k0", "v": "y"}])


def test_scalar_alternatives_are_one_expression():
    schema = {"anyOf": [{"const": f"v{i}", "description": "one of many"} for i in range(1000)]}
    GrammarChecker(DEMO / "tokenizer.json").check_answer(JsonSchema(schema), param="p")
    run_through(schema, "v999")


def test_as_many_tools_and_choices_as_a_request_may_have():
    parameters = many_optional(20, False)
    tools = [FunctionTool(name=f"f{i}", parameters=parameters, strict=True) for i in range(128)]
    for choice in ("required", "auto"):
        follow(answer_grammar(tools=tools, tool_choice=choice), call("f127", '{"p3": "x"}'))
    follow(answer_grammar(response=Choice(tuple(f"choice {i}" for i in range(1000)))), f"{FINAL}choice 999<|return|>")
