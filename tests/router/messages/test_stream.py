"""Chat streams as events of a message: any habits of engines, any chunking, stop strings, ends that are none."""

import asyncio
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.anthropic import CLOCK, USER, WEATHER, folded, records, unparsed, without_ids
from tests.router.support.chats import Answer, answers, pieces

from eyas.router.messages.translation import Translation
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.part import Part

MARK = re.compile("<\\|\u2060+")
ESCAPED = re.compile(r"<\|(?:" + "\u2060" + r"|\\u2060)+")


def translation(**fields) -> Translation:
    body = {"model": "claude-x", "messages": [USER], "tools": [WEATHER, CLOCK], "max_tokens": 50, "stream": True}
    return Translation.of(json.dumps(body | fields).encode())


def parts_of(one: Translation, chunks: list[bytes]) -> list[Part]:
    async def feed():
        for chunk in chunks:
            yield chunk

    async def run() -> list[Part]:
        return [part async for part in one.parts(feed())]

    return asyncio.run(run())


def message_of(parts: list[Part], *, is_counted: bool = True) -> dict:
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    return folded(records(b"".join(part.data for part in parts).decode()), is_counted=is_counted)


def events(*deltas: dict, finish: str | None = "stop", done: bool = True) -> bytes:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish is not None:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return b"".join(f"data: {json.dumps(one)}\n\n".encode() for one in chunks) + (b"data: [DONE]\n\n" if done else b"")


def said(*deltas: dict, **fields) -> dict:
    return message_of(parts_of(translation(**fields), [events(*deltas)]), is_counted=False)


def expected(answer: Answer) -> list[dict]:
    blocks: list[dict] = []
    for one in answer.said:
        match one:
            case ("reasoning", text):
                blocks.append({"type": "thinking", "thinking": MARK.sub("<|", text), "signature": "eyas"})
            case ("content", text):
                blocks.append({"type": "text", "text": MARK.sub("<|", text)})
            case ("call", name, arguments):
                text = ESCAPED.sub("<|", arguments)
                try:
                    given = json.loads(text or "{}")
                except ValueError:
                    given = None
                given = given if isinstance(given, dict) else unparsed(text)
                blocks.append({"type": "tool_use", "name": name, "input": given})
    return blocks


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_answer_in_any_chunks(data):
    answer = data.draw(answers())
    parts = parts_of(translation(), data.draw(pieces(answer.raw)))
    has_usage = bool(answer.chunks[0].get("usage"))
    message = message_of(parts, is_counted=has_usage or answer.usage is None)
    assert without_ids(message)["content"] == expected(answer)
    has_call = any(one[0] == "call" for one in answer.said)
    assert message["stop_reason"] == ("tool_use" if has_call else "end_turn")
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids)
    if answer.usage is not None:
        usage = message["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 4, 7)
    shown = [part for part in parts if part.shows]
    assert bool(shown) == bool(answer.said)
    assert "".join(part.text for part in parts) == "".join(
        (ESCAPED if one[0] == "call" else MARK).sub("<|", one[-1]) for one in answer.said
    )


@settings(max_examples=60, deadline=None)
@given(answer=answers())
def test_a_whole_answer_is_the_same(answer):
    message = json.loads(translation(stream=False).whole(json.dumps(answer.whole).encode()))
    order = {"thinking": 0, "text": 1, "tool_use": 2}
    blocks = sorted(expected(answer), key=lambda block: order[block["type"]])
    assert without_ids(message)["content"] == blocks
    assert message["model"] == "claude-x" and message["id"].startswith("msg_")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_cut_stream_never_ends_well(data):
    answer = data.draw(answers())
    raw = answer.raw
    end = raw.rindex(f'"finish_reason": "{answer.finish}"'.encode())
    cut = data.draw(st.integers(0, end))
    with pytest.raises(UpstreamError) as error:
        parts_of(translation(), [raw[:cut]])
    assert error.value.kind == "broken"


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("abc<|\u2060"), max_size=20),
    stop=st.sampled_from(["b", "ab", "cab", "</b"]),
    data=st.data(),
)
def test_a_stop_string_ends_the_content_wherever_it_is_cut(text, stop, data):
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    bounds = [0, *places, len(text)]
    deltas = [{"content": text[a:b]} for a, b in pairwise(bounds)]
    message = said({"reasoning_content": stop}, *deltas, stop_sequences=[stop])
    plain = MARK.sub("<|", text)
    before, found, _ = plain.partition(stop)
    assert message["content"][0]["thinking"] == stop, "it says nothing in reasoning"
    assert "".join(block["text"] for block in message["content"][1:]) == before
    wanted = ("stop_sequence", stop) if found else ("end_turn", None)
    assert (message["stop_reason"], message["stop_sequence"]) == wanted


def test_nothing_behind_a_stop_string_is_read_and_the_backend_is_not_told_of_it():
    one = translation(stop_sequences=["</block>"])
    assert "stop" not in json.loads(one.request("m"))
    raw = events({"content": "<block>yes</blo"}, {"content": "ck> and more"}, done=False)
    parts = parts_of(one, [raw, b"data: this is no JSON\n\n"])
    message = message_of(parts, is_counted=False)
    assert message["content"] == [{"type": "text", "text": "<block>yes"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "</block>")


def test_length_is_max_tokens_or_the_context():
    cut = events({"content": "a"}, finish="length", done=False)
    for num_tokens, reason in ((50, "max_tokens"), (7, "model_context_window_exceeded"), (None, "max_tokens")):
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": num_tokens}}
        raw = cut + (b"" if num_tokens is None else f"data: {json.dumps(usage)}\n\n".encode())
        assert message_of(parts_of(translation(), [raw]), is_counted=num_tokens is None)["stop_reason"] == reason


def test_text_behind_a_call_waits_for_its_end():
    head = {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "clock", "arguments": "{"}}]}
    tail = {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}
    blocks = said(head, {"content": "So."}, tail)["content"]
    assert [(one["type"], one.get("input", one.get("text"))) for one in blocks] == [("tool_use", {}), ("text", "So.")]


def test_arguments_are_sent_as_they_come():
    head = {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "clock", "arguments": ""}}]}
    more = [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"a', '": 1', "}")]
    chunks = [events(one, finish=None, done=False) for one in (head, *more)]
    parts = parts_of(translation(), [*chunks, events()])
    assert [part.text for part in parts] == ["", '{"a', '": 1', "}", ""]
    assert [part.shows for part in parts] == [True, True, True, True, False]


def test_names_lose_the_namespace_that_engines_leave_in_front():
    call = {"tool_calls": [{"index": 0, "function": {"name": "functions.clock", "arguments": "{}"}}]}
    assert said(call)["content"][0]["name"] == "clock"
    other = {"tool_calls": [{"index": 0, "function": {"name": "functions.other", "arguments": "{}"}}]}
    assert said(other)["content"][0]["name"] == "functions.other"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"data: <html>\n\n", "malformed"),
        (b'data: {"choices": 3}\n\n', "malformed"),
        (b'data: {"error": {"message": "out of memory", "code": 500}}\n\n', "status"),
        (b'data: {"object": "error", "message": "out of memory"}\n\n', "status"),
        (events({"content": "a"}, finish="abort"), "broken"),
        (events({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), "malformed"),
        (b"", "broken"),
        (b"data: [DONE]\n\n", "broken"),
        (b"<html>502 Bad Gateway</html>", "broken"),
    ],
)
def test_what_is_no_answer(raw, kind):
    with pytest.raises(UpstreamError) as error:
        parts_of(translation(), [raw])
    assert error.value.kind == kind


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"choices": []}', b'{"error": "no"}', b'{"choices":[{}]}'])
def test_what_is_no_whole_answer(body):
    with pytest.raises(UpstreamError):
        translation(stream=False).whole(body)
