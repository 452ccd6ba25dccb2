"""Grammars of one turn through llguidance's own matcher, token by token, over the demo vocabulary."""

from __future__ import annotations

import random

import pytest
from tests.gateway.support.grammar import CODEC, ENDS, FINAL, NOTE, THINK, allowed, call, is_accepted, spelled, start

from eyas.base.bundled import DEMO
from eyas.base.errors import InvalidRequest
from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.tools import FunctionTool, called_function
from eyas.gateway.grammar.checker import (
    Choice,
    GrammarChecker,
    JsonObject,
    JsonSchema,
    Lark,
    NamedTool,
    Regex,
    answer_grammar,
)

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
STRICT = FunctionTool(name="get_weather", parameters=CITY, strict=True)
TOOLS = [
    STRICT,
    FunctionTool(name="get_time"),
    FunctionTool(name="get", parameters={"properties": {"n": {"type": "integer"}}}),
]
LAX = TOOLS[1:]

TURNS = {
    "text": f"{FINAL}hi there<|return|>",
    "thought, text": f"{THINK}{FINAL}hi<|return|>",
    "note, text": f"{THINK}{NOTE}{FINAL}hi<|return|>",
    "json": f'{FINAL}{{"a": 1}}<|return|>',
    "thought, marked json": f"{THINK}{THINK}<|channel|>final <|constrain|>json<|message|>{{}}<|return|>",
    "good call": THINK + call("get_weather", '{"city": "Oslo"}'),
    "note, good call": NOTE + call("get_weather", '{\n  "city": "Oslo"\n}'),
    "bad arguments": call("get_weather", '{"town": "Oslo"}'),
    "no arguments": call("get_time", "{}"),
    "arguments for none": call("get_time", '{"a":1}'),
    "loose call": call("get", '{"n":1,"m":[2]}'),
    "no object": call("get", "3"),
    "unknown function": call("get_it", "{}"),
    "call without its end": call("get_time", "{}").replace("<|call|>", "<|return|>"),
    "text without its end": f"{FINAL}hi<|end|>",
    "call to the analysis": call("get_time", "{}").replace("commentary", "analysis"),
}
TABLE = {  # (tools, choice, response): the turns that are possible
    "auto": (TOOLS, "auto", None, "text|thought, text|note, text|json|good call|note, good call|no arguments|"
    "arguments for none|loose call|no object"),
    "auto, json": (TOOLS, "auto", JsonObject(), "json|thought, marked json|good call|no arguments|arguments for none|"
    "loose call|no object"),
    "lax tools, json": (LAX, "auto", JsonObject(), "json|thought, marked json|no arguments|arguments for none|"
    "loose call|no object"),
    "none": (TOOLS, "none", None, "text|thought, text|note, text|json"),
    "none, json": (TOOLS, "none", JsonObject(), "json|thought, marked json"),
    "no tools, json": ([], "auto", JsonObject(), "json|thought, marked json"),
    "required": (TOOLS, "required", None, "good call|no arguments|loose call"),
    "required, json": (TOOLS, "required", JsonObject(), "good call|no arguments|loose call"),
    "named": (TOOLS, NamedTool("get"), None, "loose call"),
    "named, strict": (TOOLS, NamedTool("get_weather"), JsonObject(), "good call"),
}  # fmt: skip


@pytest.mark.parametrize(("tools", "choice", "response", "possible"), TABLE.values(), ids=TABLE)
def test_which_turns_are_possible(tools, choice, response, possible):
    grammar = answer_grammar(tools=tools, tool_choice=choice, response=response)
    assert [name for name, turn in TURNS.items() if is_accepted(grammar, turn)] == [
        name for name in TURNS if name in possible.split("|")
    ]


def test_reasoning_comes_to_an_end():
    grammar = answer_grammar(tools=TOOLS, tool_choice="required")
    assert is_accepted(grammar, THINK * 8 + TURNS["good call"].removeprefix(THINK))
    assert not is_accepted(grammar, THINK * 9 + TURNS["good call"].removeprefix(THINK))


@pytest.mark.parametrize(("tools", "choice"), [([], "auto"), ([], "none"), (LAX, "auto")])
def test_nothing_is_bound_without_need(tools, choice):
    assert answer_grammar(tools=tools, tool_choice=choice) is None


def test_choices_without_a_tool_are_refused():
    with pytest.raises(InvalidRequest, match=r"'get_wether', which is none of the tools .*'get_weather'"):
        answer_grammar(tools=TOOLS, tool_choice=NamedTool("get_wether"))
    with pytest.raises(InvalidRequest, match="needs tools"):
        answer_grammar(tool_choice="required")


def test_the_header_of_a_named_tool_is_forced_token_by_token():
    matcher = start(answer_grammar(tools=TOOLS, tool_choice=NamedTool("get_weather")))
    header = spelled(call("get_weather", "")[: -len("<|call|>")])
    assert allowed(matcher) == [header[0]]
    matcher.consume_token(header[0])
    assert {CODEC.decode([token])[0] for token in allowed(matcher)} == {"a", "c"}  # analysis, or the call
    text = ""
    matcher.consume_token(CODEC.encode("commentary")[0])
    while len(choices := allowed(matcher)) == 1:
        text += CODEC.decode(choices)
        matcher.consume_token(choices[0])
    assert text.startswith(" to=functions.get_weather <|constrain|>json<|message|>{")


def test_a_required_call_leaves_the_choice_of_the_tool_only():
    matcher = start(answer_grammar(tools=TOOLS, tool_choice="required"))
    matcher.consume_tokens(spelled("<|channel|>commentary to=functions."))
    starts = {CODEC.decode([token]) for token in allowed(matcher)}
    assert starts and all(any(tool.name.startswith(text) for tool in TOOLS) for text in starts)


FORMATS = {
    "regex": (Regex("[a-c]+/[0-9]{2}"), ["abc/12", "a/00"], ["abc/1", "abc/123", "/12", " a/12", ""]),
    "anchored regex": (Regex("^a|bc$"), ["a", "bc"], ["ab", "b"]),
    "escaped slash": (Regex(r"\/[/]\\/"), ["//\\/"], ["/", "//\\"]),
    "regex of lines": (Regex("a\nb|\\w+\u00e9"), ["a\nb", "caf\u00e9"], ["a", "a b"]),
    "regex that looks like an option": (Regex("/i"), ["/i"], ["/I", "i"]),
    "choice": (
        Choice(("yes", "no", 'say "x"\n\\', "\u4f60\u597d")),
        ["yes", "no", 'say "x"\n\\', "\u4f60\u597d"],
        ["ye", "maybe"],
    ),
    "prefixes": (Choice(("a", "ab", "abc")), ["a", "ab", "abc"], ["abcd", "b"]),
    "json object": (JsonObject(), ["{}", '{"a": [1, {"b": null}]}'], ["[]", "3", "{", '{"a"}', "{} ", " {}", "null"]),
    "lark": (Lark('start: sum\nsum: sum "+" N | N\nN: /[0-9]+/\n%ignore " "'), ["1", "1 + 23+4"], ["+", "1+", "a"]),
    "lark with json": (Lark('start: "x=" %json {"type": "integer", "minimum": 3}'), ["x=3"], ["x=2", "3"]),
}


@pytest.mark.parametrize(("response", "good", "bad"), FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("before", ["", THINK])
def test_formats_of_the_answer(response, good, bad, before):
    GrammarChecker(DEMO / "tokenizer.json").check_answer(response, param="p")
    grammar = answer_grammar(response=response)
    for text in good:
        assert is_accepted(grammar, f"{before}{FINAL}{text}<|return|>"), text
    for text in bad:
        assert not is_accepted(grammar, f"{before}{FINAL}{text}<|return|>"), text
    assert not is_accepted(grammar, call("f", "{}"))


@pytest.mark.parametrize("text", ['{"a": 1, "b":2}', '{\n  "a": 1\n}', '{\r\n\t"a":\n1}', '{"a":1}'])
def test_white_space_of_json(text):
    assert is_accepted(answer_grammar(response=JsonObject()), f"{FINAL}{text}<|return|>")


@pytest.mark.parametrize("gap", ["  ", "\n\n", "\n" + " " * 5, "\n \n", "\t"])
def test_white_space_of_json_is_bounded(gap):
    grammar = answer_grammar(response=JsonSchema(CITY))
    for text in (f'{{{gap}"city":"a"}}', f'{{"city"{gap}:"a"}}', f'{{"city":{gap}"a"}}', f'{{"city":"a"{gap}}}'):
        assert not is_accepted(grammar, f"{FINAL}{text}<|return|>")


def walk(grammar: str, rng: random.Random, *, longest: int = 300) -> list[int] | None:
    """A random turn under the masks, None if it gets too long. Ends of texts are favoured."""
    matcher, ids = start(grammar), []
    favoured = {*CODEC.special.values(), *(CODEC.encode(text)[0] for text in '"{}[],:')}
    while not matcher.is_stopped():
        choices = allowed(matcher)
        good = [token for token in choices if token in favoured]
        ids.append(rng.choice(good if good and rng.random() < 0.7 else choices))
        assert matcher.consume_token(ids[-1])
        if len(ids) > longest:
            return None
    return ids


@pytest.mark.parametrize(("tools", "choice", "response"), [row[:3] for row in TABLE.values()], ids=TABLE)
def test_any_turn_under_the_masks_is_well_formed_harmony(tools, choice, response):
    rng, names, kinds = random.Random(0), {tool.name for tool in tools}, set()
    for ids in filter(
        None, (walk(answer_grammar(tools=tools, tool_choice=choice, response=response), rng) for _ in range(12))
    ):
        parser = StreamParser(CODEC)
        parser.feed(ids)
        parser.finish()
        *before, last = parser.messages
        assert {message.channel for message in before} <= {"analysis", "commentary"}
        assert all(message.recipient is None for message in before)
        assert ids[-1] in ENDS and not set(ENDS) & set(ids[:-1])
        called = called_function(last.recipient, names)
        assert (called is None) == (last.channel == "final") == (ids[-1] == ENDS[0])
        kinds.add(called)
    assert kinds
    if choice in ("none", "required") or isinstance(choice, NamedTool):
        assert (None in kinds) == (choice == "none")


@pytest.mark.parametrize(
    "response", [JsonSchema(CITY), FORMATS["lark"][0], FORMATS["choice"][0]], ids=["schema", "lark", "choice"]
)
def test_drafts_can_be_taken_back(response):
    """After looking ahead and rolling back the masks are as before: what speculation needs."""
    grammar = answer_grammar(response=response, tools=TOOLS)
    text = {"JsonSchema": '{"city": "a b"}', "Lark": "1 + 2+3", "Choice": 'say "x"\n\\'}[type(response).__name__]
    ids = spelled(f"{THINK}{FINAL}{text}<|return|>")
    plain, ahead = start(grammar), start(grammar)
    for i, token in enumerate(ids):
        num = min(3, len(ids) - 1 - i)  # the end of the turn is not looked beyond
        assert ahead.try_consume_tokens(ids[i : i + num]) == num
        assert ahead.rollback(num)
        assert allowed(ahead) == allowed(plain)
        assert plain.consume_token(token) and ahead.consume_token(token)
    assert plain.is_stopped() and ahead.is_stopped()


REFUSED = {
    "regex": (Regex("("), "unclosed group"),
    "look-around": (Regex("(?=a)b"), "look-ahead"),
    "empty regex": (Regex(""), "is empty"),
    "long regex": (Regex("a" * 10_001), "more than 10000 characters"),
    "no choice": (Choice(()), "at least one choice"),
    "empty choice": (Choice(("a", "")), "none of them empty"),
    "many choices": (Choice(tuple(map(str, range(1001)))), "more than 1000 choices"),
    "lark": (Lark("start: ((("), "Expected"),
    "unknown rule": (Lark("start: nope"), "unknown name"),
    "unknown special token": (Lark("start: <|nope|>"), "unknown special token"),
    "one-way option": (Lark('start: a "x"\na[max_tokens=3]: /.*/'), "'max_tokens' is not supported"),
    "many rules": (Lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(501))), "more than 500 rules"),
    "long lark": (Lark(" " * 100_001), "more than 100000 characters"),
}


@pytest.mark.parametrize(("response", "reason"), REFUSED.values(), ids=REFUSED)
def test_formats_that_cannot_be_enforced_are_refused(response, reason):
    with pytest.raises(InvalidRequest, match=reason) as caught:
        GrammarChecker(DEMO / "tokenizer.json").check_answer(response, param="structured_outputs")
    assert caught.value.param == "structured_outputs"
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_a_checker_without_a_tokenizer_knows_no_special_tokens_but_all_else():
    checker = GrammarChecker()
    checker.check_answer(Lark("start: <|nope|>"), param="p")
    checker.check(answer_grammar(tools=TOOLS), param="tools")
    with pytest.raises(InvalidRequest, match="unclosed group"):
        checker.check_answer(Regex("("), param="p")
