"""A backend as a pool's policy sees it: its state, its footprint, who waits for it, when it was last used."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eyas.router.memory.events import State, Usage
from eyas.router.settings.schema import BackendSettings, Priority

__all__ = ["RANKS", "Footprint", "Member"]

RANKS: dict[Priority, int] = {"low": 0, "normal": 1, "critical": 2}
FIRST_REQUEST_S = 30.0  # for which one that was just loaded stays, until those that waited for it have been sent
FORGET = 0.1  # of what a footprint was too large goes with each load


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes of memory: the most while it loads, and when it is ready. `is_learnt`: both were measured."""

    peak: int
    steady: int
    is_learnt: bool = False

    def learn(self, peak: int, steady: int) -> Footprint:
        """Return what is expected after a load that took this: more at once, less by and by."""
        if not self.is_learnt:
            return Footprint(peak=max(peak, steady), steady=steady, is_learnt=True)
        steady = _towards(self.steady, steady)
        return Footprint(peak=max(_towards(self.peak, peak), steady), steady=steady, is_learnt=True)


def _towards(old: int, new: int) -> int:
    return new if new >= old else old - math.ceil(FORGET * (old - new))


class Member:
    """State of one backend. Changed by the policy alone."""

    __slots__ = (
        *(
            "failed_until",
            "footprint",
            "is_draining",
            "is_larger_told",
            "is_pinned",
            "last_used",
            "load_peak",
            "name",
            "ordered_at",
        ),
        *("ready_at", "sent_before", "settings", "state", "usage", "used_before", "waiting_since", "waits_reason"),
        "was_used",
    )

    def __init__(self, settings: BackendSettings, footprint: Footprint, now: float) -> None:
        self.settings = settings
        self.name = settings.name
        self.footprint = footprint
        self.is_pinned = settings.is_pinned
        self.state: State = "idle"
        self.usage = Usage(0, 0)
        self.waiting_since: float | None = None  # the oldest request that waits for it
        self.ordered_at: float | None = None  # a person's order to load it, or the start of the router
        self.waits_reason = ""  # that was last reported
        self.failed_until = -math.inf  # until then nothing is tried
        self.last_used = now
        self.ready_at = now
        self.sent_before = 0  # requests, before it was ready
        self.was_used = True  # since it is ready
        self.used_before = 0  # of the pool, when its load or its end began
        self.load_peak = -1  # the most that it was seen to take in this load; -1: that was not seen from its beginning
        self.is_larger_told = self.is_draining = False

    @property
    def wanted_since(self) -> float | None:
        """The time since which it is wanted; None: no request waits for it."""
        times = [time for time in (self.waiting_since, self.ordered_at) if time is not None]
        return min(times, default=None)

    @property
    def rank(self) -> tuple[int, int, float]:
        """Order of evictions: the lowest priority first, then the one least recently used."""
        return RANKS[self.settings.priority], int(self.usage.in_flight > 0), self.last_used

    def used(self, usage: Usage, now: float) -> None:
        """Take over how many requests it has."""
        if usage.in_flight or usage.num_sent > self.usage.num_sent:
            self.last_used = now
        if usage.num_sent > self.sent_before:
            self.was_used = True
        self.usage = usage

    def may_go(self, now: float) -> bool:
        """Return whether it may be unloaded for another: not before a request that it was loaded for was sent."""
        return (
            self.state == "ready" and not self.is_pinned and (self.was_used or now >= self.ready_at + FIRST_REQUEST_S)
        )
