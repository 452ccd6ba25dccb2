"""Errors meant for people. HTTP status codes and exit codes are chosen by whoever reports them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["Busy", "EyasError", "InvalidRequest", "Unavailable", "UserError", "nearest"]


class EyasError(Exception):
    """Base of all errors that eyas raises on purpose; the message says what happened and what to do."""


class UserError(EyasError):
    """Something the person who started the command can mend: a path, a flag, a checkpoint."""


class InvalidRequest(EyasError):
    """One request cannot be served as asked; the engine and all other requests go on.

    `param` names the offending request field where there is one.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Busy(EyasError):
    """The queue is full; the same request may succeed later."""


class Unavailable(EyasError):
    """Nothing is served just now: the engine is loading, being restarted or stopping."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known name closest to `name`, or nothing."""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
