"""Counts the tokens of a prompt as its backend would: by the engine's own routes where it has some, else by a guess."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from eyas.gateway.anthropic.body import CountBody
from eyas.gateway.anthropic.question import question_of
from eyas.gateway.http.body import Raw, decode
from eyas.gateway.http.explain import INVALID_JSON
from eyas.gateway.question.question import Question
from eyas.router.messages.marks import disarmed
from eyas.router.messages.request import Message, chat_effort, chat_messages, chat_tools

__all__ = ["Ask", "Counting", "has_count", "tokens_of"]

Ask: TypeAlias = Callable[[str, bytes], Awaitable[bytes | None]]
TOKENIZE, TEMPLATE = "/tokenize", "/apply-template"
BYTES_PER_TOKEN = 4  # of the JSON of a chat; a first prompt of Claude Code has 4.9 with gpt-oss's vocabulary


class Counting:
    """A body of `/v1/messages/count_tokens` for a chat endpoint."""

    def __init__(self, body: CountBody, question: Question) -> None:
        conversation = question.conversation
        self._chat: Message = {"messages": chat_messages(conversation)}
        if tools := chat_tools(conversation):
            self._chat["tools"] = tools
        self._chat |= chat_effort(body, conversation)

    @classmethod
    def of(cls, raw: Raw, *, today: Callable[[], datetime.date] = datetime.date.today) -> Counting:
        """Raises InvalidRequest naming the field."""
        body = decode(raw, CountBody)
        return cls(body, question_of(body, "", today=today()))

    async def tokens(self, ask: Ask, model: str | None = None) -> int:
        """Return the number. `ask` posts a body to a path of the backend; its answer is None unless that is a 200."""
        named = self._chat if model is None else {"model": model, **self._chat}
        body = _encoded({**named, "add_generation_prompt": True})
        number = _number(await ask(TOKENIZE, body), "count")  # vLLM
        if number is None and (prompt := _value(await ask(TEMPLATE, _encoded(named)), "prompt")) is not None:
            plain = {"content": prompt, "add_special": False, "parse_special": True}
            tokens = tokens_of(await ask(TOKENIZE, msgspec.json.encode(plain)))  # llama-server
            number = None if tokens is None else len(tokens)
        return number if number is not None else self.estimate()

    def estimate(self) -> int:
        """Return a guess."""
        return -(-len(msgspec.json.encode(self._chat)) // BYTES_PER_TOKEN)


def has_count(body: bytes) -> bool:
    """Return whether an answer of `/tokenize` is in vLLM's format."""
    return isinstance(_value(body, "count"), int)


def tokens_of(body: bytes | None) -> list[int] | None:
    """Return the tokens in an answer of llama-server's `/tokenize`."""
    tokens = _value(body, "tokens")
    return tokens if isinstance(tokens, list) else None


def _encoded(chat: Message) -> bytes:
    return disarmed(msgspec.json.encode(chat))


def _value(body: bytes | None, name: str) -> Any:
    try:
        found = None if body is None else msgspec.json.decode(body)
    except INVALID_JSON:
        return None
    return found.get(name) if isinstance(found, dict) else None


def _number(body: bytes | None, name: str) -> int | None:
    found = _value(body, name)
    return found if isinstance(found, int) and found > 0 else None
