"""A streamed answer is added up, and a break in the order of its events is said."""

import pytest

from eyas.claude.answer import Block, WrongAnswer, answer
from eyas.claude.server import connect

BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello?"}]}


def ask(server, **more):
    with connect(server.url, None) as http:
        return answer(http, BODY | more)


def test_text_and_calls(server):
    found = ask(server)
    assert found.blocks == [Block(kind="text", name="", text="Hello")]
    assert found.stop_reason == "end_turn" and found.first_s > 0
    assert found.usage["output_tokens"] == 3 and found.num_cached == 0
    assert ask(server).num_input == found.num_input
    call = ask(server, tools=[{"name": "paint"}])
    assert call.blocks == [Block(kind="tool_use", name="paint", text='{"colour":"green"}')]
    assert server.bodies[0] == BODY | {"stream": True}
    assert server.seen[0][:2] == ("POST", "/v1/messages") and server.seen[0][2]["anthropic-version"] == "2023-06-01"


def test_unknown_events_and_fields_are_taken(server):
    server.spoil = lambda events: [{"type": "new"}, *events[:3], {"type": "newer"}, *events[3:]]
    assert ask(server).blocks[0].text == "Hello"


def without(kind):
    return lambda events: [event for event in events if event["type"] != kind]


def again(kind):
    return lambda events: [one for event in events for one in [event] * (2 if event["type"] == kind else 1)]


def moved(events):
    return [event | {"index": 1} if event["type"] == "content_block_delta" else event for event in events]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda events: [], "the stream ends after nothing"),
        (without("message_start"), "content_block_start after nothing"),
        (without("content_block_start"), "content_block_delta after message_start"),
        (without("content_block_stop"), "message_delta after content_block_delta"),
        (without("message_delta"), "message_stop after content_block_stop"),
        (without("message_stop"), "the stream ends after message_delta"),
        (again("message_start"), "message_start after message_start"),
        (again("content_block_start"), "content_block_start after content_block_start"),
        (again("content_block_stop"), "content_block_stop after content_block_stop"),
        (again("message_stop"), "message_stop after message_stop"),
        (moved, "content_block_delta of block 1, and the open one is 0"),
        (lambda events: [*events[:4], {"type": "error", "error": {"message": "it broke"}}], "in the stream: it broke"),
        (lambda events: [{"type": "message_start"}], "an event that cannot be read (KeyError"),
        (lambda events: [{"type": "error"}], "an event that cannot be read (KeyError"),
    ],
)
def test_wrong_events(server, spoil, words):
    server.spoil = spoil
    with pytest.raises(WrongAnswer) as caught:
        ask(server)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, {"type": "error", "error": {"message": "no such path"}}), "status 404: no such path"),
        ((500, "broken\nquite"), 'status 500: "broken\\nquite"'),
        ((529, {"error": None}), 'status 529: {"error": null}'),
    ],
)
def test_refusals(server, answer, words):
    server.statuses["/v1/messages"] = answer
    with pytest.raises(WrongAnswer) as caught:
        ask(server)
    assert str(caught.value) == words


def test_a_server_that_is_gone(server):
    with connect("http://127.0.0.1:9", None) as http, pytest.raises(WrongAnswer, match=r"no whole answer \(.*refused"):
        answer(http, BODY)
