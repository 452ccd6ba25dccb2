"""State of a pool for people: on the page, in `/router/status` and as metrics."""

from __future__ import annotations

import math

from msgspec import Struct

from eyas.router.memory.events import State
from eyas.router.memory.policy import PoolPolicy
from eyas.router.memory.pressure import Level
from eyas.router.settings.schema import MemorySettings, PoolSettings

__all__ = ["MemberStatus", "PoolStatus", "status_of"]


class MemberStatus(Struct, frozen=True, kw_only=True):
    """A backend in a pool. Sizes are bytes: `used` now, and what it is expected to take, learnt or declared."""

    backend: str
    state: State
    used: int
    steady: int
    peak: int
    declared: int
    is_learnt: bool
    priority: str
    is_exclusive: bool
    is_pinned: bool


class PoolStatus(Struct, frozen=True, kw_only=True):
    """A pool. Sizes are bytes, shares of `total` the levels; None where nothing was measured yet.

    `others` is what no backend of the pool holds: the system, and processes that this router does not know.
    """

    name: str
    kind: str
    level: Level
    total: int | None
    used: int | None
    others: int | None
    age_s: int | None  # of the figures
    fault: str  # why they cannot be measured
    some: float
    full: float
    warning: float
    critical: float
    emergency: float
    members: tuple[MemberStatus, ...]


def status_of(pool: PoolSettings, policy: PoolPolicy, settings: MemorySettings, now: float) -> PoolStatus:
    """Return how a pool stands at `now`."""
    reading = policy.reading
    members = tuple(
        MemberStatus(
            backend=one.name,
            state=one.state,
            used=policy.held(one),
            steady=one.footprint.steady,
            peak=one.footprint.peak,
            declared=one.settings.steady_bytes,
            is_learnt=one.footprint.is_learnt,
            priority=one.settings.priority,
            is_exclusive=one.settings.is_exclusive,
            is_pinned=one.is_pinned,
        )
        for one in policy.members.values()
    )
    held = sum(one.used for one in members)
    return PoolStatus(
        name=pool.name,
        kind=pool.kind,
        level=policy.level,
        total=None if reading is None else reading.total,
        used=None if reading is None else reading.used,
        others=None if reading is None else max(0, reading.used - held),
        age_s=None if math.isinf(policy.read_at) else round(now - policy.read_at),
        fault=policy.fault,
        some=0.0 if reading is None else reading.some,
        full=0.0 if reading is None else reading.full,
        warning=settings.warning,
        critical=settings.critical,
        emergency=settings.emergency,
        members=members,
    )
