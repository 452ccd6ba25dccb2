"""Events that the policy decides on, and the effects that it answers with, beside happenings.

All are plain data, so a log of events with their times replays the decisions.
"""

from __future__ import annotations

from msgspec import Struct

from eyas.base.serving.failures import FailureKind
from eyas.router.manager.condition import Condition
from eyas.router.manager.happenings import Happening
from eyas.router.manager.visit import Wanted

__all__ = [
    "Arrived",
    "Changed",
    "Closed",
    "Done",
    "Effect",
    "Event",
    "Failed",
    "Full",
    "Left",
    "Refuse",
    "Reported",
    "Send",
    "Shown",
    "Sighted",
    "TimePassed",
]


# -- what happens ------------------------------------------------------------------------------------------------------


class Arrived(Struct, frozen=True, tag=True):
    """Event: a request comes. Numbers of visits grow."""

    visit: int
    wanted: Wanted


class Shown(Struct, frozen=True, tag=True):
    """Event: the client has seen content."""

    visit: int


class Failed(Struct, frozen=True, tag=True):
    """Event: the backend that has the visit failed."""

    visit: int
    kind: FailureKind
    detail: str = ""


class Full(Struct, frozen=True, tag=True):
    """Event: the backend that has the visit answered 429."""

    visit: int
    retry_after_s: float | None = None


class Done(Struct, frozen=True, tag=True):
    """Event: the answer is complete."""

    visit: int


class Left(Struct, frozen=True, tag=True):
    """Event: the client has left, from the queue or from a backend."""

    visit: int


class Reported(Struct, frozen=True, tag=True):
    """Event: a watcher says how a backend is."""

    backend: str
    condition: Condition


class Sighted(Struct, frozen=True, tag=True):
    """Event: the guard saw a loop in an answer and let it pass."""

    backend: str
    kind: FailureKind
    detail: str = ""


class TimePassed(Struct, frozen=True, tag=True):
    """Event: the time has come that the policy wanted to be woken at."""


class Closed(Struct, frozen=True, tag=True):
    """Event: the router stops. Answers go on, but nothing else is sent to a backend."""


Event = Arrived | Shown | Failed | Full | Done | Left | Reported | Sighted | TimePassed | Closed

# -- what follows ------------------------------------------------------------------------------------------------------


class Send(Struct, frozen=True):
    """Effect: the visit goes to this backend, whose place it has from now on."""

    visit: int
    backend: str
    is_probe: bool = False


class Refuse(Struct, frozen=True):
    """Effect: the visit ends without an answer."""

    visit: int
    message: str
    status: int
    retry_after_s: float | None = None
    code: str | None = None


class Changed(Struct, frozen=True):
    """Effect: a visit that waits, now waits for something else."""

    visit: int


Effect = Send | Refuse | Changed | Happening
