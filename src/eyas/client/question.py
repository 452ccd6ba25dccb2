"""Messages and fields of a chat completion, as a body for each endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eyas.base.errors import UserError

__all__ = ["Messages", "Question", "encoded"]

Messages = str | Sequence[Mapping[str, Any]]


class Question:
    """The body of a streamed chat completion. Fields that are None are not sent."""

    __slots__ = ("_fields",)

    def __init__(self, messages: Messages, max_tokens: int | None, fields: Mapping[str, Any]) -> None:
        for name in ("stream", "stream_options"):
            if name in fields:
                raise UserError(f"'{name}' cannot be set: the client always streams, and asks for usage")
        if fields.get("n") not in (None, 1):
            raise UserError("'n' must be 1: ask once for each answer")
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        if fields.get("max_completion_tokens") is not None:
            max_tokens = None
        known = {"messages": said, "max_tokens": max_tokens, **fields}
        self._fields = {name: value for name, value in known.items() if value is not None}

    def body(self, model: str, *, with_usage: bool) -> bytes:
        """Return the body of the request for `model`."""
        options = {"stream_options": {"include_usage": True}} if with_usage else {}
        return encoded({"model": model, **self._fields, "stream": True, **options})


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return the body of a request. Raises UserError for what JSON has no form for."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"the request cannot be written as JSON: {error}") from None
