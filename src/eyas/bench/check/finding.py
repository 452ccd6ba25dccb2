"""Verdicts of the smoke test, and what a check returns or raises. Data alone.

*ok*: it does what OpenAI's API says. *missing*: it is not offered, and a client can see that. *broken*: what comes back
is wrong, though the request was taken. *not judged*: this model, or what failed before, leaves nothing to conclude.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

__all__ = [
    "Failed",
    "Finding",
    "Refused",
    "Request",
    "Result",
    "Verdict",
    "broken",
    "missing",
    "ok",
    "unclear",
]

Verdict = Literal["ok", "missing", "broken", "not judged"]


class Request(Struct, frozen=True, kw_only=True):
    """A request that can be repeated. `body` is what was sent, text where it is no JSON on purpose."""

    method: str
    path: str
    body: dict[str, Any] | str | None = None


class Result(Struct, frozen=True):
    """Conclusion of a check, in one line. `request` shows it; None: the last one that the check has sent."""

    verdict: Verdict
    text: str
    request: Request | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """A result with its check's name and what that asks for. `request` is there where it is missing or broken."""

    name: str
    asks: str
    verdict: Verdict
    text: str
    request: Request | None = None


class Refused(Exception):
    """An error of the server's about the request: 4xx, its words."""

    def __init__(self, status: int, message: str, request: Request) -> None:
        super().__init__(f"HTTP status {status}: {message or 'without a word why'}")
        self.status, self.request = status, request


class Failed(Exception):
    """No answer, or none that can be read; the message says what came instead."""

    def __init__(self, message: str, request: Request) -> None:
        super().__init__(message)
        self.request = request


def ok(text: str) -> Result:
    return Result("ok", text)


def missing(text: str, request: Request | None = None) -> Result:
    return Result("missing", text, request)


def broken(text: str, request: Request | None = None) -> Result:
    return Result("broken", text, request)


def unclear(text: str) -> Result:
    return Result("not judged", text)
