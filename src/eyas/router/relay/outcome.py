"""Records of a relayed request that is over, and of what its guard saw: all that metrics and the access log know.

The relay calls its `listeners` with an `Outcome` once for each request, when it is over, and with a `Trip` whenever a
guard found a loop, in mode observe too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Listener", "Outcome", "Trip", "TripKind"]

TripKind = Literal["degenerate", "one_symbol"]  # as in `FailureKind`


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Reported once for each request that was read, refused ones included, when it is over.

    `path` is the path of the route (`/v1/responses/{id}`). `status` is that of the answer, or that of the error which
    ended it even if the headers had already been sent with 200, or CLIENT_LEFT. `backend` is the last one that was
    asked, `num_asked` how many were. Times are in seconds from the request's arrival: to the first call of a backend
    (`queue_s`), to the first content that was sent on (`ttft_s`; None for whole answers and if none came), to the end.
    """

    request_id: str
    path: str
    status: int
    model: str | None = None  # as in the file; None if the request names none that exists
    route: str | None = None  # the route that decided
    backend: str | None = None
    num_asked: int = 0
    queue_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float = 0.0
    error: str | None = None  # the message of an error of the router or a backend, for the log


@dataclass(frozen=True, kw_only=True, slots=True)
class Trip:
    """A guard found that an answer repeats itself. `action`: whether it only counted this, or ended the answer."""

    backend: str
    model: str
    kind: TripKind
    action: Literal["observe", "act"]


Listener = Callable[[Outcome | Trip], None]
