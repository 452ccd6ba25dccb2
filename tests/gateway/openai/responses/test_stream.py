"""Whatever the answer and however its tokens arrive, folding the events gives the whole response."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.responses import analysis, call, check_events, final, fold, preamble, spoken

from eyas.base.errors import InvalidRequest, Unavailable
from eyas.base.types import FinishReason, Request, SamplingParams, TokenEvent, TokenLogprob
from eyas.gateway.openai.responses.stream import ResponseGrowth, ResponseObject, encode_events
from eyas.gateway.turn.choice import ChoiceReader
from eyas.gateway.turn.readers import HarmonyReader
from eyas.gateway.turn.stops import Stops

TEXTS = st.text(alphabet="ab \u00e9\U0001f985{}\n", max_size=12)
MESSAGES = st.lists(st.builds(lambda make, text: make(text), st.sampled_from([analysis, preamble, final, call]), TEXTS))
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def deltas_of(codec, ids, sizes, *, finish=FinishReason.STOP, logprobs=0, stops=()):
    """What a turn makes of `ids` that arrive in rounds of `sizes`, over and over."""
    request = Request(request_id="r", prompt_ids=(1,), params=SamplingParams(logprobs=logprobs))
    eos = (codec.special["<|return|>"], codec.special["<|call|>"])
    reader = HarmonyReader(codec, frozenset({"get_weather"}))
    choice = ChoiceReader(request, 0, reader, Stops(strings=stops), eos)
    deltas, at, i = [], 0, 0
    while not deltas or deltas[-1].finish is None:
        part = tuple(ids[at : at + sizes[i % len(sizes)]])
        at, i = at + len(part), i + 1
        event = TokenEvent(
            request_id="r",
            choice=0,
            token_ids=part,
            logprobs=tuple(TokenLogprob(logprob=-0.5) for _ in part) if logprobs is not None else None,
            finish=finish if at >= len(ids) else None,
        )
        if (delta := choice.take(event, float(i))) is not None:
            deltas.append(delta)
    return deltas


def grow(codec, deltas, *, with_logprobs=True, end=None):
    """(the response, its events as clients read them)."""
    response = ResponseObject(id="resp_x", created_at=1, model="m", temperature=1.0, top_p=1.0)
    growth = ResponseGrowth(response, codec, stem="x", with_logprobs=with_logprobs)
    sent = encode_events(growth.begin())
    for delta in deltas:
        sent += encode_events(growth.take(delta))
    if end is not None:
        sent += encode_events(end(growth))
    events = [json.loads(block.split("\ndata: ")[1]) for block in sent.decode().split("\n\n")[:-1]]
    return json.loads(msgspec.json.encode(response)), events


def without_times(response):
    return {name: value for name, value in response.items() if name not in ("timings", "metrics", "completed_at")}


@settings(max_examples=60, deadline=None)
@given(messages=MESSAGES, sizes=SIZES)
def test_the_events_add_up_to_the_response_whatever_the_rounds(codec, messages, sizes):
    ids = spoken(codec, *messages) or [codec.special["<|return|>"]]
    response, events = grow(codec, deltas_of(codec, ids, sizes))
    check_events(events)
    assert events[-1]["type"] == "response.completed" and events[-1]["response"] == response
    assert fold(events[:-1]) == response["output"]
    at_once, _ = grow(codec, deltas_of(codec, ids, [len(ids)]))
    assert without_times(at_once) == without_times(response)
    shown = [message for message in messages if message.content or message.recipient]
    assert [text_of(item) for item in response["output"]] == [message.content for message in shown]
    assert [kind_of(item) for item in response["output"]] == [expected_kind(message) for message in shown]


@settings(max_examples=60, deadline=None)
@given(messages=MESSAGES, sizes=SIZES)
def test_log_probabilities_belong_to_the_message_that_they_are_of(codec, messages, sizes):
    response, _ = grow(codec, deltas_of(codec, spoken(codec, *messages) or [1], sizes))
    for item in response["output"]:
        if item["type"] == "message":
            tokens = [bytes(entry["bytes"]) for entry in item["content"][0]["logprobs"]]
            assert tokens == [codec.token_bytes(i) for i in codec.encode(text_of(item))]


@settings(max_examples=60, deadline=None)
@given(messages=MESSAGES, sizes=SIZES, cut=st.integers(1, 60))
def test_what_the_token_limit_cuts_off_is_incomplete(codec, messages, sizes, cut):
    ids = (spoken(codec, *messages) or [1])[:cut]
    response, events = grow(codec, deltas_of(codec, ids, sizes, finish=FinishReason.LENGTH))
    check_events(events)
    assert events[-1]["type"] == "response.incomplete" and events[-1]["response"] == response
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert fold(events[:-1]) == response["output"]
    assert [item["status"] for item in response["output"][:-1]] == ["completed"] * (len(response["output"]) - 1)
    assert all(item["status"] == "incomplete" for item in response["output"][-1:])


def test_a_failure_keeps_what_there_is(codec):
    ids = spoken(codec, analysis("Hm."), final("Half of an answer"))
    deltas = deltas_of(codec, ids, [4])[:-2]
    for error, code in ((Unavailable("gone"), "server_error"), (InvalidRequest("no"), "invalid_prompt")):
        response, events = grow(codec, deltas, end=lambda growth, error=error: growth.fail(error))
        check_events(events)
        assert events[-1]["type"] == "response.failed" and events[-1]["response"] == response
        assert response["status"] == "failed" and response["error"] == {"code": code, "message": str(error)}
        assert response["usage"] is None and response["output"][-1]["status"] == "incomplete"
        text = text_of(response["output"][-1])
        assert text and "Half of an answer".startswith(text)


def test_a_cancelled_response_says_so(codec):
    response, events = grow(codec, deltas_of(codec, spoken(codec, final("Hello")), [2])[:-1], end=ResponseGrowth.cancel)
    check_events(events)
    assert (events[-1]["type"], response["status"]) == ("response.incomplete", "cancelled")


def test_a_bug_of_ours_ends_with_an_error_event(codec):
    _, events = grow(codec, [], end=lambda growth: growth.error("internal error"))
    check_events(events)
    assert events[-1] == {
        "type": "error",
        "sequence_number": 2,
        "code": "server_error",
        "message": "internal error",
        "param": None,
    }


def test_a_token_that_ends_the_answer_unseen_has_its_log_probability(codec):
    """As a requested stop token that is text: it is drawn, and not shown."""
    ids = spoken(codec, final("Hello there"))[:-1]
    response, events = grow(codec, deltas_of(codec, ids, [1]))
    entries = response["output"][0]["content"][0]["logprobs"]
    assert [bytes(entry["bytes"]) for entry in entries] == [codec.token_bytes(i) for i in codec.encode("Hello there")]
    assert text_of(response["output"][0]) != "Hello there" and fold(events[:-1]) == response["output"]


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES)
def test_stop_strings_hold_log_probabilities_back_with_the_text(codec, sizes):
    ids = spoken(codec, preamble("so it is"), analysis("then"), final("once upon a stop"))
    response, events = grow(codec, deltas_of(codec, ids, sizes, stops=(" stop", "is not")))
    assert [text_of(item) for item in response["output"]] == ["so it is", "then", "once upon a"]
    assert fold(events[:-1]) == response["output"]
    first = b"".join(bytes(entry["bytes"]) for entry in response["output"][0]["content"][0]["logprobs"])
    assert first == b"so it is"


def text_of(item):
    return item["arguments"] if item["type"] == "function_call" else "".join(part["text"] for part in item["content"])


def kind_of(item):
    return item.get("phase") or item["type"]


def expected_kind(message):
    if message.recipient is not None:
        return "function_call"
    return {"analysis": "reasoning", "commentary": "commentary", "final": "final_answer"}[message.channel]
