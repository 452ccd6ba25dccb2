"""A session of the shape that Claude Code sends, in words of our own, on the demo model's engine: what its cache gives.

`make test-clients` has the real client on a real engine; this is what every change must pass.
"""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from tests.gateway.support.anthropic import post
from tests.gateway.support.gateway import Server, running

from eyas.base.bundled import DEMO
from eyas.base.settings.config import EngineConfig
from eyas.engine.ports.threaded import Engine
from eyas.gateway.app import create_app
from eyas.gateway.server.context import GatewayOptions

PAGE = 16  # tokens
NUM_STEPS = 8
BIRDS = ("eagle", "owl", "heron", "swift", "wren", "crane", "stork", "kite")
LINE = "x-anthropic-billing-header: cc_version=2.1.330.{}; cc_entrypoint=sdk-cli;"
RULES = "You help in a garden of birds. Count what you see, write it down, and say nothing twice."
PLACE = "# The garden\nIt has twelve trees and a pond. Tools that can be found by a search: count_eggs, ring_bird."


def tool(name: str, **fields) -> dict:
    schema = {"type": "object", "properties": {"where": {"type": "string", "description": f"Where to {name}."}}}
    return {"name": name, "description": f"Use it to {name} in the garden.", "input_schema": schema} | fields


class Garden:
    """A conversation, and its next request. What a request marks for caching moves with the last message."""

    def __init__(self, name: str, question: str = "Which birds are there?") -> None:
        self._line = LINE.format(name)
        first = [{"type": "text", "text": "<hint>It is morning.</hint>"}, {"type": "text", "text": question}]
        self._messages: list[dict] = [{"role": "user", "content": first}, {"role": "system", "content": PLACE}]
        self._num_calls = 0
        self._found: list[str] = []

    @property
    def body(self) -> dict:
        last = dict(self._messages[-1])
        if isinstance(last["content"], str):
            last["content"] = [{"type": "text", "text": last["content"]}]
        *before, block = last["content"]
        last["content"] = [*before, block | {"cache_control": {"type": "ephemeral"}}]
        found = [tool(name, defer_loading=True) for name in self._found]
        return {
            "system": [
                {"type": "text", "text": self._line},
                {"type": "text", "text": "You work for a gardener.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": f"\n{RULES}", "cache_control": {"type": "ephemeral"}},
            ],
            "messages": [*self._messages[:-1], last],
            "tools": [tool("look"), tool("search"), *(found or [tool("none_yet", defer_loading=True)]), tool("write")],
            "max_tokens": 1,
            "temperature": 0,
        }

    def call(self, *names: str, output=None, is_reversed: bool = False) -> None:
        """Add an answer with calls, and their results as they came back."""
        ids = [f"toolu_{self._num_calls + i}" for i in range(len(names))]
        self._num_calls += len(names)
        uses = [
            {"type": "tool_use", "id": id, "name": name, "input": {"where": f"tree {id[6:]}"}}
            for id, name in zip(ids, names, strict=True)
        ]
        thought = {"type": "thinking", "thinking": f"Now {' and '.join(names)}.", "signature": "s"}
        results = [
            {"type": "tool_result", "tool_use_id": id, "content": output or f"a {BIRDS[int(id[6:]) % 8]} in the tree"}
            for id in ids
        ]
        self._messages.append({"role": "assistant", "content": [thought, *uses]})
        self._messages.append({"role": "user", "content": results[::-1] if is_reversed else results})

    def find(self, name: str) -> None:
        self._found.append(name)
        self.call("search", output=[{"type": "tool_reference", "tool_name": name}])

    def remind(self, text: str) -> None:
        self._messages.append({"role": "system", "content": text})

    def answer(self, text: str, question: str) -> None:
        thought = {"type": "thinking", "thinking": "That is all.", "signature": "s"}
        self._messages.append({"role": "assistant", "content": [thought, {"type": "text", "text": text}]})
        self._messages.append({"role": "user", "content": question})


def steps(garden: Garden) -> Iterator[dict]:
    """Yield the bodies of `NUM_STEPS` requests."""
    yield garden.body
    garden.call("look")
    yield garden.body
    garden.call("look", "write", "look", is_reversed=True)
    yield garden.body
    garden.find("count_eggs")
    yield garden.body
    garden.call("count_eggs", output=[{"type": "text", "text": "seven eggs"}])
    garden.remind("The gardener has heard nothing for a while.")
    yield garden.body
    garden.call("write")
    yield garden.body
    garden.find("ring_bird")
    yield garden.body
    garden.call("ring_bird", "write", is_reversed=True)
    yield garden.body


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "keep_reasoning"])
def demo(request):
    engine = Engine.load(EngineConfig(model="demo", draft="none", context=4096, concurrency=2, device="cpu"))
    options = GatewayOptions(tokenizer_json=DEMO / "tokenizer.json", keep_reasoning=request.param)
    with running(create_app(engine, engine.tokenizer, options), engine) as url:
        yield Server(url, engine, None), request.param


def asked(server: Server, body: dict) -> tuple[int, int]:
    """Return how many tokens a prompt has, and how many of them the cache had."""
    answer = post(server, **body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    cached = usage["cache_read_input_tokens"]
    count = post(server, "/v1/messages/count_tokens", **{key: body[key] for key in ("system", "messages", "tools")})
    assert count.json() == {"input_tokens": usage["input_tokens"] + cached}
    return count.json()["input_tokens"], cached


@pytest.mark.slow
def test_a_session_reads_only_what_is_new(demo):
    server, keeps_reasoning = demo
    garden = Garden("ed0")
    found = [asked(server, body) for body in steps(garden)]
    assert len(found) == NUM_STEPS
    for (before, _), (_, cached) in pairwise(found):
        assert cached == before // PAGE * PAGE, "every whole page of the step before"

    garden.answer("There are eight birds.", "And how many eggs?")
    total, cached = asked(server, garden.body)
    last, first = found[-1][0], found[0][0]
    if keeps_reasoning:
        assert cached == last // PAGE * PAGE
    else:  # the turn's reasoning is gone: all before it is as it was
        assert total < last and cached == first // PAGE * PAGE
    garden.call("look")
    assert asked(server, garden.body)[1] == total // PAGE * PAGE


def test_another_conversation_shares_tools_and_instructions(demo):
    """Its line of attribution is another. The first to part from the others finds what is left, the next all of it."""
    server, _ = demo
    shares = []
    for number in range(3):
        total, cached = asked(server, Garden(f"0f{number}", f"How high is tree {number}?").body)
        shares.append(cached / total)
    assert min(shares[1:]) > 0.75
