"""Chooses what of a conversation goes to the model: the newest turns within a number and a budget of tokens.

Tokens are estimated: the bot has no tokenizer of the model. An estimate begins at four bytes a token, which is a little
much for English and about right for code and for most other languages, and follows what the server has counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Recalled", "TokenEstimate", "Turn", "recall"]

BYTES_PER_TOKEN = 4.0
RANGE = (1.0, 8.0)  # of bytes per token: what a server counts may hold tools and images
MIN_BYTES = 400  # of a prompt to learn from: shorter ones are mostly the template's
SHARE = 0.2  # of the newest prompt in the estimate
TURN_TOKENS = 4  # of a chat template, for each turn
IMAGE_TOKENS = 800  # differs by model
MAX_NAME_CHARS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A message that a person or the model wrote; `images` are parts of OpenAI's chat API."""

    role: Literal["user", "assistant"]
    text: str
    name: str = ""
    images: tuple[dict[str, Any], ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled:
    """Messages of OpenAI's chat API. `num_tokens` is estimated; `num_dropped` counts older turns that did not fit."""

    messages: list[dict[str, Any]]
    num_tokens: int
    num_dropped: int


class TokenEstimate:
    """Estimates how many tokens a text has, by what the server has counted of earlier prompts."""

    def __init__(self) -> None:
        self._bytes_per_token = BYTES_PER_TOKEN

    def count(self, text: str) -> int:
        """Return about how many tokens `text` has."""
        return round(len(text.encode(errors="replace")) / self._bytes_per_token)

    def learn(self, num_bytes: int, num_tokens: int) -> None:
        """Take in that a prompt of `num_bytes` had `num_tokens`."""
        if num_bytes < MIN_BYTES or num_tokens <= 0:
            return
        low, high = RANGE
        found = min(max(num_bytes / num_tokens, low), high)
        self._bytes_per_token += SHARE * (found - self._bytes_per_token)


def recall(
    turns: Sequence[Turn],
    *,
    system: str | None,
    max_turns: int,
    max_tokens: int,
    estimate: TokenEstimate,
) -> Recalled:
    """Return the newest of `turns`, oldest first, that fit; the last one, the question, always stands.

    A budget drops whole turns, and answers whose question was dropped go with it. With more than one person in it
    each text of a person begins with the name.
    """
    tokens = 0 if system is None else estimate.count(system) + TURN_TOKENS
    kept: list[Turn] = []
    names = {turn.name for turn in turns if turn.role == "user"}
    for turn in reversed(turns[-max_turns:]):
        size = estimate.count(turn.text) + TURN_TOKENS + IMAGE_TOKENS * len(turn.images)
        if kept and tokens + size > max_tokens:
            break
        tokens += size
        kept.insert(0, turn)
    while len(kept) > 1 and kept[0].role == "assistant" and len(kept) < len(turns):
        tokens -= estimate.count(kept.pop(0).text) + TURN_TOKENS
    messages = [] if system is None else [{"role": "system", "content": system}]
    return Recalled(
        messages=messages + [_message(turn, with_name=len(names) > 1) for turn in kept],
        num_tokens=tokens,
        num_dropped=len(turns) - len(kept),
    )


def _message(turn: Turn, *, with_name: bool) -> dict[str, Any]:
    text = turn.text
    if with_name and turn.role == "user" and turn.name:
        text = f"{' '.join(turn.name.split())[:MAX_NAME_CHARS]}: {text}"
    if not turn.images:
        return {"role": turn.role, "content": text}
    return {"role": turn.role, "content": [{"type": "text", "text": text}, *turn.images]}
