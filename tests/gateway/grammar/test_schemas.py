"""JSON schemas as grammars: what they accept against a validator that we did not write, and what is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from tests.gateway.support.grammar import CODEC, FINAL, allowed, spelled, start

from eyas.base.bundled import DEMO
from eyas.base.errors import InvalidRequest
from eyas.base.harmony.tools import FunctionTool
from eyas.gateway.grammar.checker import GrammarChecker, JsonSchema, answer_grammar


def thing(required: tuple[str, ...] = (), extra: Any = False, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": extra}


STR, INT, NUM, BOOL = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
PASSWORD = {"type": "string", "format": "password", "writeOnly": True, "maxLength": 2}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": thing(("v",), v=INT, kids={"type": "array", "items": {"$ref": "#/$defs/tree"}})},
}
LINKED = thing(("v",), v=STR, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})

SCHEMAS: dict[str, dict[str, Any]] = {  # of rising difficulty
    "anything": {},
    "boolean": BOOL,
    "integer": INT,
    "range": {"type": "integer", "minimum": -3, "exclusiveMaximum": 12},
    "multiple": {"type": "integer", "multipleOf": 4},
    "number": {"type": "number", "minimum": 0.5, "maximum": 2.5},
    "string": STR,
    "length": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": "^[a-c]+$"},
    "unanchored pattern": {"type": "string", "pattern": "b"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "enum": {"enum": ["a", 1, None, [True], {"k": "v"}]},
    "const": {"const": {"a": [1, 2]}},
    "array": {"type": "array", "items": INT, "minItems": 1, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [STR, INT], "items": BOOL, "minItems": 2},
    "object": thing(("a",), a=INT, b=STR),
    "open object": thing(("a",), True, a=INT),
    "typed rest": thing((), INT, a=STR),
    "map": {"type": "object", "additionalProperties": INT, "minProperties": 1, "maxProperties": 2},
    "patterned keys": {"type": "object", "patternProperties": {"^n_": INT, "^s_": STR}, "additionalProperties": False},
    "several types": thing(("a",), a={"type": ["integer", "null", "boolean"]}),
    "any of": {"anyOf": [INT, thing(("a",), a=STR), {"type": "array", "items": STR}]},
    "one of": {"oneOf": [STR, INT]},
    "all of": {"allOf": [thing(("a",), True, a=INT), thing(("b",), True, b=STR)]},
    "nested": thing(("o",), o=thing(("p",), p={"type": "array", "items": thing(("q",), q={"enum": ["x", "y"]})})),
    "tagged": {"anyOf": [thing(("t", "r"), t={"const": "circle"}, r=NUM), thing(("t",), t={"const": "square"}, s=NUM)]},
    "list": LINKED,
    "tree": TREE,
    "union by a tag": {
        "$defs": {"cat": thing(("k",), k={"const": "cat"}), "dog": thing(("k", "a"), k={"const": "dog"}, a=STR)},
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "k", "mapping": {"cat": "#/$defs/cat", "dog": "#/$defs/dog"}},
    },
    "formats of any text": thing(("format",), format={"type": "string", "format": "path"}, a=PASSWORD),
    "constant with a format": {"const": {"format": "path"}},
    "annotated": {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "x-order": 1, **INT},
}  # fmt: skip
DOCUMENTS = [
    *[None, True, False, 0, 1, 4, 7, 8, 11, 12, -3, -4, 0.5, 2.5, 2.51, 0.25, 1.75, 100],
    *["", "a", "ab", "abc", "abca", "xbx", "ccccc", "\u4f60\u597d", 'q"\\\n', "2024-02-29", "2024-13-01"],
    *["123e4567-e89b-12d3-a456-426614174000", "123e4567"],
    *[[], [1], [1, 2, 3], [1, 2, 3, 4], ["a"], ["a", 1], ["a", 1, True], ["a", 1, 2], [True], [[1]]],
    *[{}, {"a": 1}, {"a": "x"}, {"a": 1, "b": "x"}, {"b": "x"}, {"a": 1, "c": [None]}, {"a": [1, 2]}, {"k": "v"}],
    *[{"a": "x", "z": 1}, {"a": "x", "z": "y"}, {"x": 1, "y": 2}, {"x": 1, "y": 2, "z": 3}, {"a": None}, {"a": True}],
    *[{"n_1": 1}, {"n_1": 1, "s_1": "a"}, {"s_1": 1}, {"o": {"p": []}}, {"o": {"p": [{"q": "x"}, {"q": "y"}]}}],
    *[{"o": {"p": [{"q": "z"}]}}, {"o": {}}, {"t": "circle", "r": 1.5}, {"t": "square", "r": 1}, {"t": "square"}],
    *[{"v": "a"}, {"v": "a", "next": None}, {"v": "a", "next": {"v": "b", "next": None}}, {"v": "a", "next": {}}],
    *[{"v": 1}, {"v": 1, "kids": []}, {"v": 1, "kids": [{"v": 2, "kids": [{"v": 3}]}]}, {"v": 1, "kids": [{}]}],
    *[{"k": "cat"}, {"k": "dog"}, {"k": "dog", "a": "x"}, {"k": "cow"}],
    *[{"format": "path"}, {"format": "/a b", "a": "12"}, {"format": "/a", "a": "123"}, {"format": 1}],
]  # fmt: skip


@pytest.fixture(scope="module")
def checker() -> GrammarChecker:
    return GrammarChecker(DEMO / "tokenizer.json")


def accepts(schema: dict[str, Any], text: str) -> bool:
    matcher, ids = start(answer_grammar(response=JsonSchema(schema))), spelled(f"{FINAL}{text}<|return|>")
    return all(matcher.consume_token(token) for token in ids) and matcher.is_stopped()


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_document_is_accepted_iff_it_is_valid(checker, schema):
    checker.check_answer(JsonSchema(schema), param="p")
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    verdicts = {json.dumps(document, ensure_ascii=False): validator.is_valid(document) for document in DOCUMENTS}
    assert {text: accepts(schema, text) for text in verdicts} == verdicts
    assert True in verdicts.values() and (False in verdicts.values() or schema == {})


def random_document(schema: dict[str, Any], rng: random.Random) -> str | None:
    """What is drawn under the masks, None if it gets too long. Ends of texts are favoured."""
    matcher = start(answer_grammar(response=JsonSchema(schema)))
    matcher.consume_tokens(spelled(FINAL))
    favoured = {CODEC.special["<|return|>"], *(CODEC.encode(text)[0] for text in '"{}[],:')}
    ids: list[int] = []
    while len(ids) < 200:
        choices = allowed(matcher)
        good = [token for token in choices if token in favoured]
        token = rng.choice(good if good and rng.random() < 0.6 else choices)
        assert matcher.consume_token(token)
        if matcher.is_stopped():
            return CODEC.decode(ids)
        ids.append(token)
    return None


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_whatever_is_drawn_under_the_masks_is_valid(schema):
    validator, rng = jsonschema_rs.validator_for(schema, validate_formats=True), random.Random(1)
    texts = [text for text in (random_document(schema, rng) for _ in range(5)) if text is not None]
    assert texts
    for text in texts:
        assert validator.is_valid(json.loads(text)), text


def test_properties_come_in_the_order_of_the_schema():
    assert accepts(SCHEMAS["object"], '{"a":1,"b":"x"}')
    assert not accepts(SCHEMAS["object"], '{"b":"x","a":1}')
    assert not accepts(SCHEMAS["object"], '{"a":1,"a":1}')


def test_arguments_are_an_object_whatever_the_schema_leaves_open(checker):
    for parameters in ({}, {"properties": {"a": INT}}, {"anyOf": [STR, thing(a=INT)]}, None):
        tool = FunctionTool(name="f", parameters=parameters, strict=True)
        checker.check_tool(tool, param="p")
        matcher = start(answer_grammar(tools=[tool], tool_choice="required"))
        matcher.consume_tokens(spelled("<|channel|>commentary to=functions.f <|constrain|>json<|message|>"))
        assert {CODEC.decode([token])[:1] for token in allowed(matcher)} == {"{"}


NOT_ENFORCED = {
    "not": ({"not": STR}, "$: the schema keyword 'not'"),
    "if": (thing(a={"if": {}, "then": STR}), "$.properties.a: the schema keyword 'if'"),
    "uniqueItems": ({"items": {"type": "array", "uniqueItems": True}}, "$.items: the schema keyword 'uniqueItems'"),
    "contains": ({"anyOf": [STR, {"contains": INT}]}, "$.anyOf[1]: the schema keyword 'contains'"),
    "unevaluated": ({"unevaluatedProperties": False}, "'unevaluatedProperties'"),
    "in definitions": ({"$defs": {"x": {"dependentRequired": {}}}}, "$.$defs.x: the schema keyword"),
    "nullable": (thing(a={"type": "string", "nullable": True}), "$.properties.a: the schema keyword 'nullable'"),
    "misspelled": ({"type": "string", "maxLenght": 3}, "'maxLenght'"),
    "leniency": ({"x-guidance": {"lenient": True}}, "'x-guidance'"),
    "format": (thing(a={"type": "string", "format": "iri"}), "$.properties.a.format: 'iri'"),
    "format of a number": ({"format": 3}, "$.format: 3"),
    "remote": ({"$ref": "https://example.com/schema.json"}, "$.$ref: only references within"),
    "file": ({"items": {"$ref": "file:///etc/passwd"}}, "$.items.$ref: only references within"),
    "neighbour": ({"$id": "https://example.com/a.json", "$ref": "b.json"}, "$.$ref: only references within"),
    "meta": ({"$schema": "https://example.com/meta.json"}, "cannot be enforced"),
    "lost reference": ({"$ref": "#/$defs/nope"}, "does not exist"),
    "type": ({"type": "strin"}, "Invalid type"),
    "overlapping one of": ({"oneOf": [STR, {"type": "string", "maxLength": 3}]}, "oneOf"),
    "look-ahead": ({"type": "string", "pattern": "(?=a)"}, "look-ahead"),
    "unsatisfiable": ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength"),
    "properties": ({"properties": 3}, "properties must be an object"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "reason"), NOT_ENFORCED.values(), ids=NOT_ENFORCED)
def test_what_cannot_be_enforced_is_refused_by_name(checker, schema, reason):
    with pytest.raises(InvalidRequest) as caught:
        checker.check_answer(JsonSchema(schema), param="response_format")
    assert reason in str(caught.value)
    assert caught.value.param == "response_format"
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = INT
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def product(num_factors: int) -> dict[str, Any]:
    """Alternatives of four that would multiply."""
    groups = [[thing(extra=True, **{f"p{i}_{j}": STR}) for j in range(4)] for i in range(num_factors)]
    return {"allOf": [{"anyOf": group} for group in groups]}


def doubling(keyword: str, levels: int) -> dict[str, Any]:
    """References that would unfold to 2^levels schemas."""
    defs: dict[str, Any] = {"d0": STR}
    for i in range(1, levels + 1):
        defs[f"d{i}"] = {keyword: [{"$ref": f"#/$defs/d{i - 1}"}, {"$ref": f"#/$defs/d{i - 1}"}]}
    return {"$ref": f"#/$defs/d{levels}", "$defs": defs}


def optional(count: int, required: int = 0, extra: Any = False) -> dict[str, Any]:
    names = [f"p{i}" for i in range(count)]
    return thing(tuple(names[:required]), extra, **dict.fromkeys(names, STR))


HOSTILE: dict[str, tuple[dict[str, Any], str | None]] = {
    "deep": (deep(31), None),
    "deeper": (deep(2000), "64 levels"),
    "large enum": ({"enum": [f"value {i}" for i in range(2000)]}, None),
    "enum beyond the lexer": ({"enum": [f"value {i}" for i in range(19_000)]}, "too big"),
    "larger enum": ({"enum": [f"value {i}" for i in range(30_000)]}, "20000 values"),
    "long values": ({"enum": ["x" * 200_000, "x" * 200_000]}, "262144 characters"),
    "properties": (optional(1000, required=1000), None),
    "optional properties": (optional(1000), "about 100 optional properties"),
    "more properties": (thing(**{f"p{i}": STR for i in range(1001)}), "1000 properties"),
    "itself": ({"$ref": "#"}, "requires another"),
    "in a circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "requires another"),
    "endless": (thing(("a",), a={"$ref": "#"}), "requires another"),
    "doubling any of": (doubling("anyOf", 20), None),
    "doubling all of": (doubling("allOf", 20), "1000 schemas together"),
    "product": (product(9), "schema too large"),
    "nested stars": ({"type": "string", "pattern": "^(a+)+$"}, None),
    "counted": ({"type": "string", "pattern": "^((a{0,100}){0,100}){0,100}$"}, None),
    "optional": ({"type": "string", "pattern": "^(a?){5000}a{5000}$"}, None),
    "look behind": ({"type": "string", "pattern": "(.*a){50}b.{500}"}, None),
    "minLength": ({"type": "string", "minLength": 10**9}, None),
    "minItems": ({"type": "array", "items": INT, "minItems": 10**9}, None),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_schemas_are_answered(checker, schema, reason):
    """The limits keep each at milliseconds; a check that takes long shows in the time of the whole."""
    if reason is None:
        checker.check_answer(JsonSchema(schema), param="p")
    else:
        with pytest.raises(InvalidRequest, match=reason):
            checker.check_answer(JsonSchema(schema), param="p")


def test_nothing_is_fetched(checker, monkeypatch):
    """With a socket that refuses to be made, schemas with URLs everywhere are answered all the same."""
    import socket

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", refuse)
    checker.check_answer(
        JsonSchema({"$id": "http://127.0.0.1:9/a", "$schema": "http://json-schema.org/draft-07/schema#"}), param="p"
    )
    for schema in ({"$ref": "http://127.0.0.1:9/a"}, {"$schema": "http://127.0.0.1:9/meta"}):
        with pytest.raises(InvalidRequest):
            checker.check_answer(JsonSchema(schema), param="p")
