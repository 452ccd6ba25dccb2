"""Tries on a server what Claude Code needs of it: the context, a stream, the cache on a repeat, a tool call."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import httpx

from eyas.base.errors import UserError
from eyas.claude.answer import Answer, WrongAnswer, answer
from eyas.claude.server import Server
from eyas.claude.settings import check_context, max_output_tokens

__all__ = ["FEW_LINES", "Finding", "check"]

LINES = 200  # of a prompt of some 3,000 tokens, since whole pages are cached
FEW_LINES = 20  # for a server with less context than Claude Code needs
MIN_CACHED = 0.9  # of the repeated prompt; its end fills no page
MAX_TOKENS = 1024
TOOL = {
    "name": "paint",
    "description": "Paints the wall in a colour.",
    "input_schema": {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Result of a try; `body` is what was sent to `/v1/messages`, None where nothing was.

    `is_cut`: no call came within the tokens of the answer, which a model that thinks on may bring about.
    """

    name: str
    is_good: bool
    text: str
    body: Mapping[str, object] | None = None
    is_cut: bool = False


def check(http: httpx.Client, server: Server, *, num_lines: int = LINES) -> Iterator[Finding]:
    """Yield what is found, one after the other as it is tried; `http` is a client of the server.

    `num_lines` are those of the repeated prompt.
    """
    yield _context(server)
    nonce = secrets.token_hex(8)  # no prompt that the server has seen
    lines = "".join(f"{nonce}: line {number} of a text to be read once.\n" for number in range(num_lines))
    body = _body(server, f"Here is a text.\n{lines}\nSay hello.") | {"max_tokens": 64}
    try:
        first = answer(http, body)
        text = f"answers, the first token after {first.first_s or 0:.2f} s"
        yield Finding(name="stream", is_good=True, text=text, body=body)
    except WrongAnswer as error:
        yield Finding(name="stream", is_good=False, text=str(error), body=body)
    else:
        try:
            yield replace(_repeat(answer(http, body)), body=body)
        except WrongAnswer as error:
            yield Finding(name="repeat", is_good=False, text=str(error), body=body)
    body = _body(server, "Paint the wall green.") | {"tools": [TOOL], "tool_choice": {"type": "any"}}
    try:
        yield replace(_call(answer(http, body)), body=body)
    except WrongAnswer as error:
        yield Finding(name="tools", is_good=False, text=str(error), body=body)


def _body(server: Server, text: str) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {
        "model": server.model,
        "messages": messages,
        "max_tokens": MAX_TOKENS,
        "output_config": {"effort": "low"},
    }


def _context(server: Server) -> Finding:
    try:
        check_context(server)
    except UserError as error:
        return Finding(name="context", is_good=False, text=str(error))
    output = max_output_tokens(server.context)
    return Finding(name="context", is_good=True, text=f"{server.context:,} tokens, {output:,} of them for an answer")


def _repeat(second: Answer) -> Finding:
    cached, total = second.num_cached, second.num_input
    text = f"{cached:,} of {total:,} tokens of a repeated prompt came from the cache"
    return Finding(name="repeat", is_good=total > 0 and cached >= MIN_CACHED * total, text=text)


def _call(found: Answer) -> Finding:
    calls = [block for block in found.blocks if block.kind == "tool_use"]
    if len(calls) != 1 or found.stop_reason != "tool_use":
        text = f"{len(calls)} calls came back, with stop reason {found.stop_reason}; one was asked for"
        is_cut = not calls and found.stop_reason == "max_tokens"
        return Finding(name="tools", is_good=False, text=text, is_cut=is_cut)
    try:
        given = json.loads(calls[0].text)
    except ValueError:
        given = None
    if calls[0].name != TOOL["name"] or not isinstance(given, dict) or given.get("colour") not in ("red", "green"):
        text = f"the call does not fit the tool: {calls[0].name} {calls[0].text[:80]!r}"
        return Finding(name="tools", is_good=False, text=text)
    return Finding(name="tools", is_good=True, text=f"a call as it was asked for: {calls[0].name} {calls[0].text}")
