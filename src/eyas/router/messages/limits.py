"""Lengths of prompt and context that an error of a backend tells, in the words of each engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from eyas.gateway.http.explain import INVALID_JSON

__all__ = ["Lengths", "lengths_of", "message_of"]

MAX_CHARS = 2000
NUMBER = r"(\d{1,9})(?:\.\d+)?"
CONTEXT = tuple(
    re.compile(pattern.format(n=NUMBER), re.IGNORECASE)
    for pattern in (
        r"maximum context length (?:is|of) {n}",  # vLLM, SGLang, OpenAI, ours
        r"maximum model length of {n}",  # vLLM
        r"context length \({n} tokens\)",  # SGLang
        r"available context size \({n} tokens\)",  # llama-server
        r"should not exceed max_(?:num_tokens|seq_len) \({n}\)",  # TensorRT-LLM
        r"tokens > {n} maximum",  # Anthropic's own words
    )
)
PROMPT = tuple(
    re.compile(pattern.format(n=NUMBER), re.IGNORECASE)
    for pattern in (
        r"\({n} in the messages",  # vLLM before 0.10, OpenAI
        r"prompt contains (?:at least )?{n} input tokens",  # vLLM
        r"request has (?:at least )?{n} (?:input )?tokens",  # vLLM, ours
        r"prompt \(length {n}\)",  # vLLM
        r"{n} tokens from the input messages",  # SGLang
        r"the input \({n} tokens\)",  # SGLang
        r"request \({n} tokens\) exceeds",  # llama-server
        r"prompt length \({n}\)",  # TensorRT-LLM
        r"messages resulted in {n} tokens",  # OpenAI
        r"prompt is too long: {n} tokens",
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Tokens of a prompt that was refused, or a lower bound of them, and of the context for prompt and answer."""

    prompt: int
    context: int


def lengths_of(body: bytes) -> Lengths | None:
    """Return both numbers of an error, None if it is about something else."""
    text = message_of(body)
    prompt, context = _first(PROMPT, text), _first(CONTEXT, text)
    return None if prompt is None or context is None else Lengths(prompt=prompt, context=context)


def message_of(body: bytes) -> str:
    """Return the message of an error in any of the engines' envelopes; "" if it has none, as a page of HTML."""
    try:
        value: Any = msgspec.json.decode(body)
    except INVALID_JSON:
        return ""
    for name in ("error", "message", "detail"):  # {"error": {"message": ...}}, {"error": ...}, {"message": ...}
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    if not isinstance(value, str):
        value = msgspec.json.encode(value).decode()
    return str(value)[:MAX_CHARS]


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    return next((int(found[1]) for pattern in patterns if (found := pattern.search(text)) is not None), None)
