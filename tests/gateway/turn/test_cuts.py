"""An answer may end anywhere. Wherever it does, all of its text is shown, and no special token and no header."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.cuts import PLACES, malformed, read, spoken, texts_of, turns
from tests.gateway.support.openai import WEATHER, added_up
from tests.gateway.support.responses import WEATHER as FLAT_WEATHER
from tests.gateway.support.responses import analysis, call, final, fold, post, preamble, raw_events

from eyas.base.types import FinishReason
from eyas.gateway.turn.delta import Kind

CALLS = [turn for turn in turns() if any(message.recipient for message in turn)]
SPOKEN = [(turn, PLACES[0]) for turn in turns()] + [(turn, place) for turn in CALLS for place in PLACES[1:]]


@pytest.mark.parametrize(("turn", "place"), SPOKEN, ids=range(len(SPOKEN)))
def test_every_cut_of_every_assistant_message(codec, turn, place):
    answer = spoken(codec, turn, place)
    num = len(answer.ids)
    for cut in range(num + 1) if num < 200 else [*range(60), *range(60, num, 97), *range(num - 30, num + 1)]:
        told = texts_of(read(codec, answer.ids[:cut], size=1000))
        assert [text for _, text in told if text] == [text for text in answer.texts(cut).values() if text]
        if cut % 5 == 0:
            assert texts_of(read(codec, answer.ids[:cut], size=1)) == told


@settings(deadline=None, max_examples=20)
@given(data=st.data(), size=st.integers(1, 3))
def test_every_cut_of_malformed_answers(codec, data, size):
    answer, is_whole = data.draw(malformed(codec))
    for cut in range(len(answer.ids) + 1):
        ids = answer.ids[:cut]
        told = texts_of(read(codec, ids, size=1000))
        assert texts_of(read(codec, ids, size=size)) == told
        shown, said = "".join(text for _, text in told), "".join(answer.texts(cut).values())
        assert not re.search(r"[a-z<>|=_]", shown), (codec.decode(ids), told)
        if is_whole:
            assert shown == said, (codec.decode(ids), told)
            continue
        # White space around a body without <|message|> is lost, and up to three words (author, recipient, type) may
        # still become a header.
        num_lost = len(said.split()) - len(" ".join(text for _, text in told).split())
        assert "".join(said.split()).startswith("".join(shown.split())), (codec.decode(ids), told)
        assert num_lost <= (3 if cut < len(answer.ids) else 0), (codec.decode(ids), told)


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_header_without_its_message_is_no_call(codec, finish):
    """By the limit as by a stop token in the header; a call that has begun is told of."""
    answer = spoken(codec, [call('{"city": 1}')])
    at = answer.owners.index(0)
    assert texts_of(read(codec, answer.ids[: at - 1], size=3, finish=finish)) == []
    assert texts_of(read(codec, answer.ids[:at], size=3, finish=finish)) == [(Kind.CALL, "")]


ANSWER = [analysis("Look it up."), preamble("One moment."), call('{"city": "Graz"}')]
HEADERS = re.compile(r"<\||to=|functions|commentary|assistant|json|analysis|final")


def limits(answer):
    """All in headers, and some in content."""
    return [n for n in range(1, len(answer.ids)) if answer.owners[n] is None or n % 12 == 0]


def test_chat_streamed_and_whole_at_every_limit(serve, codec):
    """`max_tokens: 1` showed `<|channel|>`; a required tool at its header `to=function`."""
    answer = spoken(codec, ANSWER)
    server = serve(lambda request, choice: answer.ids)
    for limit in limits(answer):
        fields = {"tools": [WEATHER], "max_tokens": limit}
        whole = server.chat(**fields).choices[0]
        streamed = added_up(server.chat(stream=True, **fields))
        message = whole.message
        calls = [(one.function.name, one.function.arguments) for one in message.tool_calls or ()]
        texts = [getattr(message, "reasoning", None), message.content, *(arguments for _, arguments in calls)]
        assert [text for text in texts if text] == [text for text in answer.texts(limit).values() if text]
        assert not HEADERS.search("".join(text or "" for text in texts)) and whole.finish_reason == "length"
        assert (streamed["content"] or "", streamed["reasoning"]) == (message.content or "", texts[0])
        assert [(one["name"], one["arguments"]) for one in streamed["tool_calls"]] == calls
        assert streamed["finish"] == "length"


def test_responses_streamed_and_whole_at_every_limit(serve, codec):
    answer = spoken(codec, ANSWER)
    server = serve(lambda request, choice: answer.ids)
    for limit in limits(answer)[::2]:
        fields = {"input": "Hi", "tools": [FLAT_WEATHER], "max_output_tokens": limit, "store": False}
        whole = post(server, **fields).json()
        streamed = fold(raw_events(server, **fields))
        texts = [item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in whole["output"]]
        assert [text for text in texts if text] == [text for text in answer.texts(limit).values() if text]
        assert not HEADERS.search("".join(texts)) and whole["status"] == "incomplete"
        assert [{**item, "id": 0, "call_id": 0} for item in streamed] == [
            {**item, "id": 0, "call_id": 0} for item in whole["output"]
        ]


def test_a_stop_token_or_stop_string_in_a_header(serve, codec):
    """Stop strings are looked for in content only; a stop token may end the answer in a header."""
    answer = spoken(codec, [analysis("A."), final("The final B.")])
    server = serve(lambda request, choice: answer.ids)
    in_header = {"content": "", "reasoning": "A."}
    for fields, expected in (
        ({"extra_body": {"stop_token_ids": [codec.special["<|start|>"]]}}, in_header),
        ({"extra_body": {"stop_token_ids": [answer.ids[answer.ids.index(codec.special["<|start|>"]) + 1]]}}, in_header),
        ({"extra_body": {"stop_token_ids": [codec.special["<|channel|>"]]}}, {"content": "", "reasoning": None}),
        ({"stop": ["assistant", "channel"]}, {"content": "The final B.", "reasoning": "A."}),
        ({"stop": ["final"]}, {"content": "The ", "reasoning": "A."}),
    ):
        for message in (
            server.chat(**fields).choices[0].message.model_dump(),
            added_up(server.chat(stream=True, **fields)),
        ):
            assert {"content": message["content"] or "", "reasoning": message.get("reasoning")} == expected


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_an_answer_that_breaks_off_in_a_header(serve, codec, end):
    """The engine fails, or the client cancels, while a header is being written: what was said before it stays."""
    answer = spoken(codec, [analysis("A."), call("{}")])
    at = answer.owners.index(1) - 1
    asked = []

    def reply(request, choice):
        asked.append(request.request_id)
        return answer.ids[:at] + answer.ids[at:]

    class Ends:
        """Ends each answer in its last header."""

        def __init__(self, engine):
            self._engine = engine

        def __getattr__(self, name):
            return getattr(self._engine, name)

        def submit(self, request, deliver):
            seen = 0

            def until(event):
                nonlocal seen
                seen += len(event.token_ids)
                if seen < at:
                    deliver(event)
                elif seen - len(event.token_ids) < at:
                    kind = FinishReason.ERROR if end == "failed" else FinishReason.CANCELLED
                    deliver(type(event)(request_id=event.request_id, choice=0, token_ids=(), finish=kind, error="gone"))

            self._engine.submit(request, until)

    server = serve(reply, wrap=Ends, drafts_per_round=1)
    events = raw_events(server, input="Hi", tools=[FLAT_WEATHER])
    assert events[-1]["type"] == "response.failed"
    (item,) = events[-1]["response"]["output"]
    assert item["content"][0]["text"] == "A."
    with pytest.raises(Exception) as caught:
        seen = []
        for chunk in server.chat(stream=True, tools=[WEATHER]):
            seen.append(chunk)
    assert added_up(seen)["reasoning"] == "A." and added_up(seen)["content"] is None
    assert not HEADERS.search(json.dumps(str(caught.value)))
