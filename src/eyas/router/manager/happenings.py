"""Happenings and snapshots, by which others learn of the manager: each thing that happened, and how all stands."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from eyas.base.serving.breaker import BreakerState
from eyas.base.serving.failures import FailureKind
from eyas.router.manager.condition import Condition
from eyas.router.memory.events import NoteKind

__all__ = ["HAPPENINGS", "BackendSnapshot", "Happening", "HappeningKind", "Snapshot"]

# Of a request: it waits until a backend is loaded (wanted); sent to a backend; then failed, full (429), done or left
# there; or refused by the router; `left` without a backend: the client has left while it waited. degenerate: the guard
# saw a loop, also where it let it pass.
# Of a backend: its breaker or its condition has changed. loops: its answers have repeated one symbol twice in 10
# minutes; where its guard acts, it must stop or go on without speculation. memory: a load, an eviction, pressure.
HappeningKind = Literal[
    "sent",
    "wanted",
    "failed",
    "full",
    "done",
    "left",
    "refused",
    "degenerate",
    "breaker",
    "condition",
    "loops",
    "memory",
]
HAPPENINGS: tuple[HappeningKind, ...] = get_args(HappeningKind)


class Happening(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened. `text` is for people and holds no secrets."""

    time_s: float  # Unix
    kind: HappeningKind
    backend: str | None = None
    model: str | None = None  # as clients name it
    route: str | None = None
    text: str = ""
    failure: FailureKind | None = None  # of failed and degenerate
    seconds: float | None = None  # of sent and refused: waited; of failed, full, done and left: since it was sent
    status: int | None = None  # of refused: 429, 503 or 504
    breaker: BreakerState | None = None  # of breaker: the new state
    condition: str | None = None  # of condition: the new state
    memory: NoteKind | None = None  # of memory: what has happened
    is_probe: bool = False  # of sent: the one that an open breaker lets in


class BackendSnapshot(Struct, frozen=True, kw_only=True):
    """State of a backend. `open_s` is the time until an open breaker lets a request in; None if it is not open."""

    condition: Condition
    breaker: BreakerState
    open_s: float | None
    failures: int  # in a row
    in_flight: int
    num_sent: int  # requests so far
    concurrency: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """State of all backends by name, and how many requests wait for each model."""

    backends: dict[str, BackendSnapshot]
    queued: dict[str, int]
