"""`decide: model`: what the resident model is asked, and what it may answer: the name of a route, by a JSON schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from eyas.router.settings.schema import RouteName

__all__ = ["answer_of", "question"]

_MEANINGS: dict[RouteName, str] = {
    "MATH": "to calculate, solve, prove or convert with numbers or formulas",
    "SIMPLE_CODE": "one short piece of code, query, command or fix, or a question about one",
    "COMPLEX_CODE": "software of many parts: design, refactoring, concurrency, hard bugs, whole programs",
    "REASONING": "logic, plans, decisions, arguments, causes, weighing of alternatives",
    "RESEARCH": "to gather, compare or explain in depth what is known about a subject",
    "SELF_HANDLE": "greetings, small talk, a short fact, a short text, translation or rewording",
}
MAX_TOKENS = 256  # a model that reasons does so first
_INSTRUCTIONS = "Say which kind of request the text between the lines is. Do not answer it.\n"


class _Message(msgspec.Struct):
    content: str


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class _Said(msgspec.Struct):
    route: str


def question(prompt: str, *, model: str, among: Sequence[RouteName]) -> bytes:
    """Return the body of a chat completion that asks `model` which of the routes `prompt` is for."""
    kinds = "\n".join(f"{name}: {_MEANINGS[name]}" for name in among)
    schema = {
        "type": "object",
        "properties": {"route": {"type": "string", "enum": list(among)}},
        "required": ["route"],
        "additionalProperties": False,
    }
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": "system", "content": f"{_INSTRUCTIONS}{kinds}"},
            {"role": "user", "content": f"-----\n{prompt}\n-----\nWhich kind of request is it?"},
        ],
        "reasoning_effort": "low",
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "response_format": {"type": "json_schema", "json_schema": {"name": "route", "strict": True, "schema": schema}},
    }
    return msgspec.json.encode(body)


def answer_of(body: bytes, among: Sequence[RouteName]) -> RouteName:
    """Return the route that a chat completion names. Raises ValueError if it names none of them."""
    try:
        said = msgspec.json.decode(msgspec.json.decode(body, type=_Answer).choices[0].message.content, type=_Said).route
    except (msgspec.MsgspecError, IndexError) as error:
        raise ValueError(f"the model has named no route: {error}") from None
    for name in among:
        if name == said:
            return name
    raise ValueError(f"the model has named no route: {said[:40]!r}")
