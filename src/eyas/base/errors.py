"""Errors meant for users. The code that reports them chooses HTTP status codes and exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["Busy", "EyasError", "InvalidRequest", "TooManyTokens", "Unavailable", "UserError", "nearest"]

MAX_MESSAGE_CHARS = 300
MAX_NAME_CHARS = 64


class EyasError(Exception):
    """Base of all errors that eyas raises on purpose; the message says what happened and what to do."""


class UserError(EyasError):
    """Something that the user of the command can fix: a path, a flag, a checkpoint."""


class InvalidRequest(EyasError):
    """A single request cannot be served as asked; the engine and all other requests go on.

    `param` names the offending request field where there is one. Both may quote what was sent: of long ones the
    beginning and the end are kept.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(_shortened(message))
        self.param = None if param is None else _shortened(param)


class TooManyTokens(InvalidRequest):
    """A text with more tokens than were wanted; it was not counted to the end."""

    def __init__(self, at_least: int, limit: int) -> None:
        super().__init__(f"the text has at least {at_least} tokens, and {limit} are taken")
        self.at_least = at_least


class Busy(EyasError):
    """The queue is full; the same request may succeed later."""


class Unavailable(EyasError):
    """The engine cannot serve at the moment: the engine is loading, being restarted or stopping."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known name closest to `name`, or nothing."""
    if len(name) > MAX_NAME_CHARS:
        return ""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _shortened(text: str) -> str:
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    gap, end = " [...] ", MAX_MESSAGE_CHARS // 3
    return text[: MAX_MESSAGE_CHARS - len(gap) - end] + gap + text[-end:]
