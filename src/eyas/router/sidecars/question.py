"""The question that a vision model is asked of an image, and the description in its answer."""

from __future__ import annotations

from typing import Any

import msgspec

from eyas.gateway.http.explain import INVALID_JSON

__all__ = ["MAX_TOKENS", "description_of", "question"]

INSTRUCTION = (
    "Describe this image for someone who cannot see it, in at most 120 words. "
    "Quote the text in it that matters. Answer with the description only."
)
MAX_TOKENS = 200
MAX_CHARS = 2000  # for servers that do not keep to MAX_TOKENS


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


def question(url: str) -> bytes:
    """Return the body of a chat completion that asks what the image at `url` shows."""
    image = {"type": "image_url", "image_url": {"url": url}}
    content = [{"type": "text", "text": INSTRUCTION}, image]
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": False,
    }
    return msgspec.json.encode(body)


def description_of(body: bytes) -> str:
    """Return the description in a chat completion. Raises ValueError if there is none."""
    try:
        said = msgspec.json.decode(body, type=_Answer).choices[0].message.content
    except (*INVALID_JSON, IndexError) as error:
        raise ValueError(f"the model's answer is none: {error}") from None
    text = (said or "").strip()[:MAX_CHARS].rstrip()
    if not text:
        raise ValueError("the model has said nothing")
    return text
