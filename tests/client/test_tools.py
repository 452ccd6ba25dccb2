"""Rounds of calls: what is asked next, results in the calls' order, an end to it."""

import asyncio
import json
from typing import ClassVar

import pytest
from tests.support.streams import streamed
from tests.train.regeneration.support.scripted import scripted

from eyas.base.errors import UserError
from eyas.client import AsyncClient
from eyas.client.pieces import Content, End
from eyas.client.tools import Result, stream_with_tools


class Doubler:
    """A tool that takes longer for small numbers, so that results come in another order than calls."""

    name = "double"
    definition: ClassVar = {"type": "function", "function": {"name": "double"}}

    async def call(self, arguments):
        number = json.loads(arguments)["n"]
        await asyncio.sleep(0.05 / number)
        return str(2 * number)


def asked(script, **fields):
    """The pieces of an answer with the tool, and the requests that were made for it."""

    async def ask(url):
        async with AsyncClient(url) as client:
            return [piece async for piece in stream_with_tools(client, "Double!", [Doubler()], **fields)]

    with scripted(script) as endpoint:
        return asyncio.run(ask(endpoint.url)), endpoint.bodies


def test_results_are_asked_about_until_an_answer_has_no_calls():
    def script(body):
        if len(body["messages"]) == 1:
            calls = [("double", '{"n": 1}'), ("double", '{"n": 7}'), ("halve", "{}")]
            return streamed("A moment.", reasoning="I call.", calls=calls)
        return streamed("2 and ", "14")

    pieces, bodies = asked(script, temperature=0)
    assert [piece.text for piece in pieces if isinstance(piece, Result)] == [
        "2", "14", "there is no tool 'halve', only double"
    ]  # fmt: skip
    assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == "A moment.2 and 14"
    assert [type(piece) for piece in pieces].count(End) == 2 and isinstance(pieces[-1], End)
    first, second = bodies
    assert first["tools"] == second["tools"] == [Doubler.definition] and second["temperature"] == 0
    assert second["messages"][0] == {"role": "user", "content": "Double!"}
    assert second["messages"][1] == {
        "role": "assistant",
        "content": "A moment.",
        "reasoning_content": "I call.",
        "reasoning": "I call.",
        "tool_calls": [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate([("double", '{"n": 1}'), ("double", '{"n": 7}'), ("halve", "{}")])
        ],
    }
    assert [(m["tool_call_id"], m["content"]) for m in second["messages"][2:]] == [
        ("call_0", "2"), ("call_1", "14"), ("call_2", "there is no tool 'halve', only double")
    ]  # fmt: skip


def test_calls_without_end_end():
    rounds = []

    def script(body):
        rounds.append(body)
        return streamed(calls=[("double", '{"n": 9}')])

    with pytest.raises(UserError, match="calls in 3 answers in a row"):
        asked(script, max_rounds=3)
    assert len(rounds) == 3
