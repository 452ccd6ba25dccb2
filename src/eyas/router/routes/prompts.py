"""The prompt by which a route is chosen: the newest text of the user in a request, whichever API it is for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from eyas.gateway.http.explain import INVALID_JSON
from eyas.router.routes.json_values import fields, items, plain

__all__ = ["MAX_PROMPT", "bounded", "prompt_of"]

MAX_PROMPT = 4000  # characters
_LISTS = {"/v1/chat/completions": "messages", "/v1/messages": "messages", "/v1/responses": "input"}
_TEXT_TYPES = ("text", "input_text", None)
_REMINDER = "<system-reminder>"  # Claude Code's own words, in blocks of the user's messages


def prompt_of(path: str, body: Mapping[str, Any]) -> str:
    """Return the newest user text of a body for `path`, at most MAX_PROMPT characters; "" if there is none.

    Results of tools are no text of the user: a session of many steps keeps the prompt that began them. A body that is
    not as it should be is no error here; the backend says what is wrong with it.
    """
    with suppress(*INVALID_JSON):
        if path == "/v1/completions":
            prompt = plain(body.get("prompt"))
            return bounded(_joined(prompt[:1] if isinstance(prompt, list) else [prompt]))
        if (name := _LISTS.get(path)) is None:
            return ""
        if isinstance(text := _text_or_rest(body.get(name)), str):
            return bounded(text)
        for message in reversed(items(body.get(name))):
            parts = fields(message)
            if plain(parts.get("role")) == "user" and (text := _text(parts.get("content"))):
                return bounded(text)
    return ""


def bounded(text: str, limit: int = MAX_PROMPT) -> str:
    """Return `text`, without its middle if it is longer than `limit`: what is asked stands first or last."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]}\n{text[len(text) - (limit - head - 1) :]}"


def _text(content: Any) -> str:
    """The text of a message: a string, or those of its parts that are text."""
    if isinstance(text := _text_or_rest(content), str):
        return text
    parts = (fields(part) for part in items(content))
    texts = (plain(part.get("text")) for part in parts if plain(part.get("type")) in _TEXT_TYPES)
    return _joined([text for text in texts if not (isinstance(text, str) and text.startswith(_REMINDER))])


def _text_or_rest(value: Any) -> Any:
    """A string read; everything else as it is, since it may be large."""
    is_string = isinstance(value, msgspec.Raw) and bytes(memoryview(value)[:1]) == b'"'
    return plain(value) if is_string else value


def _joined(texts: list[Any]) -> str:
    return "\n".join(text for text in texts if isinstance(text, str)).strip()
