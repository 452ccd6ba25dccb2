"""The interface between a request that is relayed and the manager that decides where it goes.

A visit is one client's request at the router. Its relay alternates: it waits for news until it may go to a backend,
goes there, and says how that went; after a failure before the first content it waits for news again. All calls are made
inside the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from eyas.base.errors import EyasError
from eyas.base.serving.budgets import Budgets, Spans
from eyas.base.serving.failures import FailureKind
from eyas.base.serving.waiting import Waiting
from eyas.gateway.http.errors import CODES

__all__ = ["Desk", "Go", "NoBackend", "Visit", "Wanted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The wish of a request. `backends` are those that may answer it, best first."""

    model: str
    backends: tuple[str, ...]
    client: str = ""  # digest of the caller's key, or an address: the queue is fair between clients
    sticky: str | None = None  # a session, or a stored response: it goes to the backend that it went to before
    must_stick: bool = False  # another backend than that cannot answer it: a stored response
    budgets: Spans = field(default_factory=dict)  # the route's, over those of each backend
    route: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Go:
    """News: the request may go to this backend now. `is_probe`: it is the one that an open breaker lets in.

    `budgets` are the backend's, with those that the route has; the manager has spent those of the queue.
    """

    backend: str
    is_probe: bool = False
    budgets: Budgets = field(default_factory=Budgets)


class NoBackend(EyasError):
    """No backend can answer. `status` is 429 for full queues, 503 for backends that are out, 504 for a spent budget.

    `code` tells a client why: "queue_full", "unavailable", or "queue_timeout" where the time to wait for a place is
    spent, which is no failure of a backend.
    """

    def __init__(
        self, message: str, status: int, *, retry_after_s: float | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or CODES.get(status)
        self.retry_after_s = retry_after_s


class Visit(Protocol):
    """One request. Exactly one of `done`, `left` and a raised `NoBackend` ends it; ending twice does nothing."""

    def place(self) -> Go | None:
        """Return where the request may go if that is known already, as the last of the news; else None: see `news`."""

    def news(self) -> AsyncGenerator[Waiting | Go, None]:
        """Yield news until the request may go to a backend; that is the last. Raises NoBackend."""

    def shown(self) -> None:
        """Record that the client has seen content: from here on a failure ends the request."""

    def failed(self, kind: FailureKind, detail: str = "") -> None:
        """Record that the backend failed, and free its place. Before `shown`, `news` then goes on with the next one."""

    def full(self, retry_after_s: float | None = None) -> None:
        """Record that the backend answered 429: no failure. `news` then goes on with the next one."""

    def done(self) -> None:
        """Record a whole answer, or an error that is the client's (4xx), and free the place."""

    def left(self) -> None:
        """Record that the request ends before its answer does, and free the place; no failure of the backend.

        Its client has left, or its time is up and the backend has had little of it.
        """


class Desk(Protocol):
    """Takes requests in."""

    def arrive(self, wanted: Wanted) -> Visit:
        """Take a request. Raises NoBackend if the queue is full or no backend could ever answer."""
