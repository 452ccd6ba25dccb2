"""Completions with tool calls through the parser: every way gpt-oss writes a header, and 500 damaged ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.base.harmony.test_parser import check_markers, final, parse, spelled, strict
from tests.base.support.harmony_cases import say, think

from eyas.base.harmony.parser import StreamParser, TextDelta, is_addressed
from eyas.base.harmony.rendering import call_message, render_message
from eyas.base.harmony.tools import called_function
from eyas.base.tokens.tokenizer import CONTROL_TOKENS

KNOWN = {"get_weather", "f"}
HEADERS = {
    "behind the channel": "<|channel|>commentary to=functions.f <|constrain|>json",
    "no space": "<|channel|>commentary to=functions.f<|constrain|>json",
    "a bare type": "<|channel|>commentary to=functions.f json",
    "no type": "<|channel|>commentary to=functions.f",
    "in front of the channel": " to=functions.f<|channel|>commentary <|constrain|>json",
    "in front, a bare type": " to=functions.f<|channel|>commentary json",
    "in front, no type": " to=functions.f<|channel|>commentary",
    "in the analysis": "<|channel|>analysis to=functions.f code",
    "no to=": " functions.f<|channel|>commentary <|constrain|>json",
    "no to= and no space": "functions.f<|channel|>commentary",
    "no space in front": "to=functions.f<|channel|>commentary",
    "no namespace": "<|channel|>commentary to=f <|constrain|>json",
    "no channel": " to=functions.f json",
    "both places": " to=functions.f<|channel|>commentary to=functions.f <|constrain|>json",
    "two channels": "<|channel|>commentary to=functions.f<|channel|>commentary json",
    "type in front": "<|channel|>commentary json to=functions.f",
    "space before the type": "<|channel|>commentary to=functions.f <|constrain|> json",
    "line breaks": "<|channel|>commentary\n to=functions.f\n<|constrain|>json\n",
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_call_is_found_however_its_header_is_written(small, header, is_first):
    before = "" if is_first else "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    ids = spelled(small, f'{before}{header}<|message|>{{"a": 1}}<|call|>')
    messages = parse(small, ids)
    assert parse(small, ids, cuts=range(len(ids))) == messages
    assert messages[:-1] == ([] if is_first else [think("Hm.")])
    assert called_function(messages[-1].recipient, KNOWN) == "f"
    assert is_addressed(messages[-1].recipient)
    assert (messages[-1].role, messages[-1].content) == ("assistant", '{"a": 1}')


@pytest.mark.parametrize("rest", ["<|channel|>commentary", ""])
def test_the_function_in_the_authors_place(small, rest):
    ids = spelled(small, f"<|channel|>analysis<|message|>Hm.<|end|><|start|>functions.f{rest}<|message|>{{}}<|call|>")
    *_, last = parse(small, ids)
    assert (last.role, last.recipient, last.content) == ("assistant", "functions.f", "{}")


@pytest.mark.parametrize("kind", [" <|constrain|>json", "<|constrain|>json", " json", " code", ""])
def test_an_answer_in_json_is_no_call(small, kind):
    (message,) = parse(small, spelled(small, f"<|channel|>final{kind}<|message|>{{}}<|return|>"))
    assert message.content == "{}"
    assert not is_addressed(message.recipient)
    assert called_function(message.recipient, {*KNOWN, "json", "code"}) is None


def test_calls_of_built_in_tools_pass_through(small):
    text = "<|channel|>analysis to=python code<|message|>print(1)<|call|>"
    (message,) = parse(small, spelled(small, text))
    assert (message.channel, message.recipient) == ("analysis", "python")
    assert is_addressed(message.recipient)
    assert called_function(message.recipient, {"python"}) is None


def test_our_own_rendering_is_read_back(o200k, small):
    message = call_message("get_weather", '{"city": "\u4f60"}')
    for codec in (o200k, small):
        assert parse(codec, render_message(codec, message), role=None) == [message]


def test_arguments_stream_with_their_recipient(small):
    parser = StreamParser(small)
    parser.feed(spelled(small, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"))
    events = [event for token in small.encode('{"a": 12}') for event in parser.feed([token])]
    assert len(events) > 2
    assert {event.recipient for event in events if isinstance(event, TextDelta)} == {"functions.f"}
    assert "".join(event.text for event in events) == '{"a": 12}'


TEXTS = ["{}", '{"city": "Osl\u00f8"}', "\U0001f600 \u4f60\u597d", "a\n\nb", "to=functions.f", "analysis", " "]


@st.composite
def turns(draw):
    """Pieces of one turn with calls: control tokens, header text, contents with a marker each."""
    pieces: list[str] = []
    for n in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["think", "note", "call", "call", "say"]))
        plain = {"think": "<|channel|>analysis", "note": "<|channel|>commentary", "say": "<|channel|>final"}
        header = plain[kind] if kind != "call" else draw(st.sampled_from([*HEADERS.values()]))
        if n:
            pieces += ["<|start|>", "assistant"]
        pieces += [part for part in re.split(r"(<\|\w+\|>)", header) if part]
        pieces += ["<|message|>", f" q{n}q", draw(st.sampled_from(TEXTS)), f" q{n + 10}q"]
        pieces.append({"call": "<|call|>", "say": "<|return|>"}.get(kind, "<|end|>"))
    return pieces


def damage(draw, codec, ids: list[int]) -> list[int]:
    """Bit flips, control tokens dropped, doubled or shuffled, bytes put in or taken out, truncation."""
    ids = list(ids)
    control = set(codec.special[name] for name in CONTROL_TOKENS)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(ids) - 1))
        places = [i for i, token in enumerate(ids) if token in control]
        kind = draw(st.sampled_from(["flip", "drop", "double", "shuffle", "byte", "delete", "cut"]))
        if kind in ("drop", "double", "shuffle") and places:
            i = draw(st.sampled_from(places))
            if kind == "shuffle":
                j = draw(st.sampled_from(places))
                ids[i], ids[j] = ids[j], ids[i]
            else:
                ids[i : i + 1] = ids[i : i + 1] * (2 if kind == "double" else 0)
        elif kind == "flip":
            flipped = ids[at] ^ 1 << draw(st.integers(0, 17))
            ids[at] = flipped if flipped < 200_000 or flipped in control else ids[at]
        elif kind == "byte":
            ids.insert(at, draw(st.sampled_from(list(codec.encode("\U0001f600")))))
        elif kind == "delete":
            del ids[at]
        elif draw(st.booleans()):
            del ids[at:]
        if not ids:
            break
    return ids


@settings(deadline=None, max_examples=60)
@given(data=st.data(), pieces=turns(), role=st.sampled_from(["assistant", None]))
def test_damaged_turns_are_parsed_alike_in_any_chunking_and_lose_nothing(small, data, pieces, role):
    start = "" if role else "<|start|>assistant"
    ids = damage(data.draw, small, spelled(small, start + "".join(pieces)))
    messages = parse(small, ids, role=role)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=10))
    assert parse(small, ids, role=role, cuts=cuts) == messages
    assert parse(small, ids, role=role, cuts=range(len(ids))) == messages
    check_markers(small, ids, role)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), pieces=turns(), role=st.sampled_from(["assistant", None]))
def test_damaged_turns_are_read_as_openai_harmony_does(harmony, o200k, data, pieces, role):
    start = "" if role else "<|start|>assistant"
    ids = damage(data.draw, o200k, spelled(o200k, start + "".join(pieces)))
    assert strict(harmony, ids, role) in (None, parse(o200k, ids, role=role))


def test_the_generator_makes_turns_that_openai_harmony_accepts_and_refuses(harmony, o200k):
    well = (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f json<|message|>{}"
    )
    assert strict(harmony, spelled(o200k, f"{well}<|call|>"), "assistant") == [
        think("a"),
        final("{}", channel="commentary", recipient="functions.f", content_type="json"),
    ]
    assert strict(harmony, spelled(o200k, well.replace("<|message|>", "", 1)), "assistant") is None
    assert parse(o200k, spelled(o200k, "<|channel|>final<|message|>x")) == [say("x")]
