"""Answers through tools: the model's calls are carried out, and it is asked again with the results, to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from msgspec import Struct

from eyas.base.errors import UserError
from eyas.client.client import AsyncClient
from eyas.client.pieces import Call, Content, Piece, Reasoning
from eyas.client.question import Messages

__all__ = ["Result", "Tool", "stream_with_tools"]


class Tool(Protocol):
    """A function that a model may call. `definition` is its entry in `tools` of a chat completion."""

    @property
    def name(self) -> str: ...
    @property
    def definition(self) -> Mapping[str, Any]: ...
    async def call(self, arguments: str) -> str:
        """Return the result of a call, errors of the model's making among it."""


class Result(Struct, frozen=True, kw_only=True):
    """Result of a call, which the model reads next."""

    call: Call
    text: str


async def stream_with_tools(
    client: AsyncClient, messages: Messages, tools: Sequence[Tool], *, max_rounds: int = 16, **fields: Any
) -> AsyncGenerator[Piece | Result, None]:
    """Yield the pieces of each answer of the model, and the result of each call after the End of its answer.

    The last answer has no calls. `fields` are those of `AsyncClient.stream`. Raises ClientError, and UserError after
    `max_rounds` answers that all had calls.
    """
    asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    offered = [tool.definition for tool in tools] or None
    by_name = {tool.name: tool for tool in tools}
    for _ in range(max_rounds):
        reasoning, content, calls = [], [], []
        pieces = client.stream(asked, tools=offered, **fields)
        async with aclosing(pieces):
            async for piece in pieces:
                match piece:
                    case Reasoning():
                        reasoning.append(piece.text)
                    case Content():
                        content.append(piece.text)
                    case Call():
                        calls.append(piece)
                yield piece
        if not calls:
            return
        asked.append(_message("".join(reasoning), "".join(content), calls))
        texts = await asyncio.gather(*(_carried_out(call, by_name) for call in calls))
        for call, text in zip(calls, texts, strict=True):
            asked.append({"role": "tool", "tool_call_id": call.id, "content": text})
            yield Result(call=call, text=text)
    raise UserError(f"the model has made calls in {max_rounds} answers in a row and not come to an end; ask otherwise")


async def _carried_out(call: Call, tools: Mapping[str, Tool]) -> str:
    tool = tools.get(call.name)
    return (
        f"there is no tool {call.name!r}, only {', '.join(tools)}" if tool is None else await tool.call(call.arguments)
    )


def _message(reasoning: str, content: str, calls: Sequence[Call]) -> dict[str, Any]:
    """Return an answer with calls as the next request has it: with its reasoning, under the names of all servers."""
    shown = {"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {}
    return {"role": "assistant", "content": content or None, **shown} | {
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    }
