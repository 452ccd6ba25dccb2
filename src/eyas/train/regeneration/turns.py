"""Walks through a recorded chat: each user turn is asked once more, with the new answers as its history.

Results of calls are recorded ones, or those of tools that carry calls out here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eyas.train.regeneration.calls import Call, Recording
from eyas.train.regeneration.prompts import Message, Prompt

__all__ = ["Answer", "Ask", "Chat", "End", "Execute", "Refused", "regenerate"]

MAX_EXECUTED = 16  # answers with executed calls for one question


class Refused(Exception):
    """The endpoint serves, but not this request; the message says why."""


class End(StrEnum):
    """The reason why a chat ends before its recorded one does; `DONE` if it does not."""

    DONE = "done"
    CALL = "call"  # a new call has no recorded result, or too many were executed
    CUT = "cut"  # an answer reached max_tokens, or has neither text nor calls
    REFUSED = "refused"  # the endpoint refused a later turn, such as one beyond its context


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An assistant message as it came. `is_whole` is False for one without its end."""

    message: Message
    calls: tuple[Call, ...]
    is_whole: bool
    num_prompt: int  # tokens, by the endpoint's `usage`
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """A chat whose assistant messages are all new; it ends with one of them, or has no messages at all."""

    prompt: Prompt
    messages: tuple[Message, ...]
    end: End
    num_answers: int  # that are among the messages
    num_prompt: int  # tokens of all answers, cut ones too
    num_tokens: int


Ask = Callable[[Sequence[Message], int], Awaitable[Answer]]
"""The answer to messages; the number counts the answers of a chat from 0. Raises Refused."""
Execute = Callable[[Any], Awaitable[str]]
"""The result of a call with these arguments."""


async def regenerate(prompt: Prompt, ask: Ask, execute: Mapping[str, Execute] | None = None) -> Chat:
    """Return the chat with answers by `ask`. Raises Refused if not even the first question was answered.

    `execute` carries out the calls of tools by their names, whatever was recorded.
    """
    history: list[Message] = []
    answers: list[Answer] = []
    end = End.DONE
    for turn in prompt.turns:
        history += turn.asked
        recording = Recording(turn.recorded)
        end = await _turn(history, answers, recording, ask, execute or {})
        if end is not End.DONE:
            break
    while history and history[-1]["role"] != "assistant":  # questions without an answer teach nothing
        history.pop()
    return Chat(
        prompt=prompt,
        messages=tuple(history),
        end=end,
        num_answers=sum(answer.is_whole for answer in answers),
        num_prompt=sum(answer.num_prompt for answer in answers),
        num_tokens=sum(answer.num_tokens for answer in answers),
    )


async def _turn(
    history: list[Message], answers: list[Answer], recording: Recording, ask: Ask, execute: Mapping[str, Execute]
) -> End:
    """Append the answers to one question, calls and their results before the last of them."""
    num_executed = 0
    while True:
        try:
            answer = await ask(history, len(answers))
        except Refused:
            if not answers:
                raise
            return End.REFUSED
        answers.append(answer)
        if not answer.is_whole:
            return End.CUT
        history.append(answer.message)
        if not answer.calls:
            return End.DONE
        others = recording.results([call for call in answer.calls if call.name not in execute])
        if others is None or num_executed == MAX_EXECUTED:
            return End.CALL
        results = []
        for call in answer.calls:
            results.append(await execute[call.name](call.arguments) if call.name in execute else others.pop(0))
        num_executed += any(call.name in execute for call in answer.calls)
        for call, result in zip(answer.calls, results, strict=True):
            history.append({"role": "tool", "tool_call_id": call.id, "content": result})
