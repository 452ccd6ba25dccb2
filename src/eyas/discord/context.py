"""Refusals of prompts that are too long for the model's context, in the words of the engines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eyas.client.errors import Refused

__all__ = ["TooLong", "too_long"]

# What vLLM, SGLang, llama.cpp, TensorRT-LLM and eyas say. Ollama cuts prompts in silence.
WORDS = re.compile(
    r"context[ _-]?(?:length|size|window)|maximum (?:model|sequence|input) length|max_model_len|context_length_exceeded"
    r"|longer than the model|too many tokens|prompt is too long|max_num_tokens",
    re.IGNORECASE,
)
COUNT = r"(\d{1,3}(?:,\d{3})+|\d{2,9})\b"
CONTEXT = re.compile(rf"(?:length|size|window|max_model_len|max_num_tokens)\D{{0,20}}{COUNT}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class TooLong:
    """A prompt that does not fit; a number is None where the server has not said it."""

    context: int | None
    asked: int | None

    def __str__(self) -> str:
        context = "" if self.context is None else f" of {self.context:,} tokens"
        asked = "" if self.asked is None else f": it has {self.asked:,}"
        return f"This question is too long for the model's context{context}{asked}. Shorten it, or attach less."


def too_long(error: Refused) -> TooLong | None:
    """Return what a server says of a prompt that is too long; None if it says something else.

    What was asked for is the first number above the context, else the largest of the others.
    """
    message = error.message
    if error.status not in (400, 413, 422) or not WORDS.search(message):
        return None
    if (match := CONTEXT.search(message)) is None:
        return TooLong(context=None, asked=None)
    context = _number(match[1])
    others = [_number(text) for text in re.findall(rf"\b{COUNT}", message[: match.start(1)] + message[match.end(1) :])]
    others = [number for number in others if number != context]
    asked = next((number for number in others if number > context), max(others, default=None))
    return TooLong(context=context, asked=asked)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
