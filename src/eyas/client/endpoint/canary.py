"""Canary request: a short question that catches a server whose health check passes but whose output is garbage.

Garbage has happened as one token without end (`!!!!`), as a phrase or paragraph without end, as an empty answer, and as
none. What the model knows is not judged, and a model that only reasons within its budget is well. A model with eyes is
shown a picture: one that was started without them answers with an error. A model of embeddings is asked for vectors
(`vectors.py`).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import httpx

from eyas.base.serving.engines import Role
from eyas.base.serving.repetition import Detector, Loop, longest_loop
from eyas.client.endpoint import vectors
from eyas.client.endpoint.picture import picture

__all__ = ["PATH", "ask", "conversation", "garbage", "path"]

PATH = "/v1/chat/completions"
QUESTION = "Name the four seasons of the year."
PICTURE_QUESTION = "What do you see in this picture? Answer in one sentence."
# Tokens: the first are enough to see garbage, and others wait for them; the last are for a model whose reasoning a
# server hides.
BUDGETS = (32, 160, 1024)
MIN_CHARS = 24  # below, repetition says nothing
MAX_UNIT = 12  # characters that repeat
MIN_COPIES = 8
END = 1_500  # characters at the end of the text in which longer things are looked for
MIN_LONG_COPIES = 3
UNIT_SHOWN = 60
MAX_SHARE = 0.6  # of a text that one repeated unit may be
MAX_CHARS = 20_000  # that are looked at


def path(role: Role) -> str:
    """Return where the bodies of a conversation go."""
    return vectors.PATH if role == "embeddings" else PATH


def ask(client: httpx.Client, model: str, timeout_s: float, role: Role = "text") -> str | None:
    """Return what is wrong with the answer of the server at `client`'s base URL, in words; None if nothing is."""
    talk = conversation(model, role)
    body = next(talk)
    while True:
        try:
            response = client.post(path(role), json=body, timeout=timeout_s)
        except httpx.TimeoutException:
            return f"no answer within {timeout_s:g} s"
        except httpx.HTTPError as error:
            return f"no answer ({error or type(error).__name__})"
        try:
            body = talk.send((response.status_code, response.text))
        except StopIteration as end:
            verdict: str | None = end.value
            return verdict


def conversation(model: str, role: Role = "text") -> Generator[dict[str, Any], tuple[int, str], str | None]:
    """Yield bodies to send to `path(role)`, PATH for a chat; each wants the status and text of the answer.

    Returns what is wrong, in words; None if nothing is.
    """
    if role == "embeddings":
        status, text = yield vectors.body(model)
        return _status(status, text) or vectors.fault(text)
    content: Any = QUESTION
    if role == "vision":
        image = {"type": "image_url", "image_url": {"url": picture()}}
        content = [{"type": "text", "text": PICTURE_QUESTION}, image]
    for budget in BUDGETS:
        body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": budget}
        status, text = yield body
        if status != 200:
            return _status(status, text)
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


def _status(status: int, text: str) -> str | None:
    return None if status == 200 else f"HTTP status {status}: {' '.join(text.split())[:200]}"


def garbage(text: str) -> str | None:
    """Return what repeats, in words, if `text` is mostly one thing over and over; None if it is not."""
    text = text.strip()[:MAX_CHARS]
    if len(text) < MIN_CHARS:
        return None
    loop = _short_loop(text) or Detector().feed(text) or _long_loop(text[-END:])
    if loop is None:
        return None
    unit = loop.unit if len(loop.unit) <= UNIT_SHOWN else f"{loop.unit[:UNIT_SHOWN]}..."
    return f"garbage came back: {unit!r} over and over"


def _short_loop(text: str) -> Loop | None:
    loop = longest_loop(text, max_period=MAX_UNIT, min_copies=MIN_COPIES)
    return loop if loop is not None and loop.span > MAX_SHARE * len(text) else None


def _long_loop(text: str) -> Loop | None:
    """Return the loop in which `text` ends and which is most of it: a phrase, or as much as fits three times.

    A `Detector` waits longer, since it stops answers; this one only judges a question that has a short answer.
    """
    loop = longest_loop(text, max_period=len(text) // MIN_LONG_COPIES, min_copies=MIN_LONG_COPIES)
    if loop is None or loop.position < len(text) or loop.span <= MAX_SHARE * len(text):
        return None
    return loop if loop.kind in ("line", "block") else None
