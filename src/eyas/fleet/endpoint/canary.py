"""Canary request: a short chat that catches a server whose health check passes but whose output is garbage.

Garbage has happened as one token without end (`!!!!`), as an empty answer, and as none. What the model knows is not
judged, and a model that only reasons within its budget is well.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import httpx

from eyas.base.repetition import longest_loop

__all__ = ["PATH", "ask", "conversation", "garbage"]

PATH = "/v1/chat/completions"
QUESTION = "Name the four seasons of the year."
BUDGETS = (160, 1024)  # tokens; the second for a model whose reasoning a server hides
MIN_CHARS = 24  # below, repetition says nothing
MAX_UNIT = 12  # characters that repeat
MIN_COPIES = 8
MAX_SHARE = 0.6  # of a text that one repeated unit may be
MAX_CHARS = 20_000  # that are looked at


def ask(client: httpx.Client, model: str, timeout_s: float) -> str | None:
    """Return what is wrong with the answer of the server at `client`'s base URL, in words; None if nothing is."""
    talk = conversation(model)
    body = next(talk)
    while True:
        try:
            response = client.post(PATH, json=body, timeout=timeout_s)
        except httpx.TimeoutException:
            return f"no answer within {timeout_s:g} s"
        except httpx.HTTPError as error:
            return f"no answer ({error or type(error).__name__})"
        try:
            body = talk.send((response.status_code, response.text))
        except StopIteration as end:
            verdict: str | None = end.value
            return verdict


def conversation(model: str) -> Generator[dict[str, Any], tuple[int, str], str | None]:
    """Yield bodies to send to PATH; each wants the status and text of the answer. Returns what is wrong, in words."""
    for budget in BUDGETS:
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": budget}
        status, text = yield body
        if status != 200:
            return f"HTTP status {status}: {' '.join(text.split())[:200]}"
        try:
            choice = json.loads(text)["choices"][0]
            message = choice["message"]
            texts = [message.get(name) for name in ("content", "reasoning_content", "reasoning", "thinking")]
            is_cut = choice.get("finish_reason") == "length"
        except (ValueError, LookupError, TypeError, AttributeError):
            return "no chat completion came back"
        said = "".join(text for text in texts if isinstance(text, str))
        if said.strip():
            return garbage(said)
        if not is_cut:
            break
    return "an empty answer came back"


def garbage(text: str) -> str | None:
    """Return what repeats, in words, if `text` is mostly one short thing over and over; None if it is not."""
    text = text.strip()[:MAX_CHARS]
    if len(text) < MIN_CHARS:
        return None
    loop = longest_loop(text, max_period=MAX_UNIT, min_copies=MIN_COPIES)
    if loop is None or loop.span <= MAX_SHARE * len(text):
        return None
    return f"garbage came back: {loop.unit!r} over and over"
