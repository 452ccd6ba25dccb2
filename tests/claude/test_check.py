"""What the check tries, and what it says of a server that lacks something."""

import pytest

from eyas.claude.check import check
from eyas.claude.server import ask, connect


def findings(server):
    with connect(server.url, server.key) as http:
        return {finding.name: finding for finding in check(http, ask(server.url, key=server.key))}


def bad(server):
    return {name: finding.text for name, finding in findings(server).items() if not finding.is_good}


def test_a_good_server(server):
    server.key = "s3cret"
    found = findings(server)
    assert list(found) == ["context", "stream", "repeat", "tools"] and all(one.is_good for one in found.values())
    assert found["context"].text == "65,536 tokens, 19,456 of them for an answer"
    assert "from the cache" in found["repeat"].text
    first, second, call = server.bodies
    assert first == second and first["model"] == "claude-local-gpt-oss-20b" and first["stream"] is True
    assert call["tools"][0]["name"] == "paint" and call["tool_choice"] == {"type": "any"}


def test_every_check_has_a_prompt_of_its_own(server):
    """Else the first one of the second check would come from the cache, and could not show that a repeat does."""
    findings(server)
    findings(server)
    assert server.bodies[0]["messages"] != server.bodies[3]["messages"]


def test_a_small_context(server):
    server.models[1] = server.models[1] | {"max_model_len": 4096}
    assert "eyas serve" in bad(server)["context"]


def test_no_cache(server):
    server.is_caching = False
    (text,) = bad(server).values()
    assert text.startswith("0 of ") and "of a repeated prompt came from the cache" in text


def test_a_server_without_the_api(server):
    server.statuses["/v1/messages"] = (404, {"error": {"message": "no such path"}})
    assert bad(server) == {"stream": "status 404: no such path", "tools": "status 404: no such path"}


def test_a_repeat_that_fails(server):
    answers = iter([lambda events: events, lambda events: events[:2], lambda events: events])
    server.spoil = lambda events: next(answers)(events)
    assert bad(server) == {"repeat": "the stream ends after message_start"}


def edited(**changes):
    def spoil(events):
        return [
            event | {"delta": event["delta"] | changes} if event["type"] == "content_block_delta" else event
            for event in events
        ]

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (edited(partial_json='{"colour": "blue"}'), "the call does not fit the tool: paint"),
        (edited(partial_json="no JSON"), "the call does not fit the tool: paint 'no JSONno JSON'"),
        (lambda events: [*events[:2], *events[-2:]], "0 calls came back, with stop reason tool_use; one was asked for"),
        (lambda events: [*events[:-2], events[-2] | {"delta": {"stop_reason": "end_turn"}}, events[-1]], "end_turn"),
    ],
)
def test_calls_that_are_none(server, spoil, words):
    server.spoil = lambda events: spoil(events) if len(server.bodies) == 3 else events
    (text,) = bad(server).values()
    assert words in text


def test_a_call_that_never_came_within_the_tokens_is_told_from_a_wrong_one(server):
    def cut(events):
        return [*events[:2], events[-2] | {"delta": {"stop_reason": "max_tokens"}}, events[-1]]

    server.spoil = lambda events: cut(events) if len(server.bodies) == 3 else events
    found = findings(server)["tools"]
    assert found.is_cut and not found.is_good and "stop reason max_tokens" in found.text
