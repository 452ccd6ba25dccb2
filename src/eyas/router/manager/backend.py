"""A backend as the policy sees it: its condition, its breaker, and how many requests it has."""

from __future__ import annotations

import math
from typing import Literal

from eyas.base.serving.breaker import Breaker
from eyas.base.serving.budgets import LOAD_S
from eyas.router.manager.condition import Condition
from eyas.router.manager.happenings import BackendSnapshot
from eyas.router.settings.schema import BackendSettings

__all__ = ["Backend", "Standing"]

FIRST_LOOK_S = 30.0  # that requests wait for one of which nothing is known yet, or nothing any more
GRACE_S = 30.0  # beyond the plan's limit, until its watcher says what has become of it
SYMBOL_S = 600.0  # two answers that repeat one symbol within this time are the engine's fault
HOLD_WEIGHT = 0.2  # of the newest answer in the mean time that one takes

# free: it takes a request now. busy: all places are taken. probing: the one request that an open breaker lets in is
# there. loading: it will be ready. idle: a request that waits for it has it loaded. open: the breaker keeps requests
# away. out: it serves none.
Standing = Literal["free", "busy", "probing", "loading", "idle", "open", "out"]


class Backend:
    """State of one backend. Changed by the policy alone."""

    __slots__ = (
        *("breaker", "condition", "hold_s", "in_flight", "name", "num_sent", "settings", "unloaded_at", "waits_until"),
        *("_reported_at", "_since", "_symbols"),
    )

    def __init__(self, settings: BackendSettings, now: float) -> None:
        self.settings = settings
        self.name = settings.name
        self.breaker = Breaker()
        self.in_flight = self.num_sent = 0
        self.hold_s: float | None = None  # the mean time of an answer
        self.condition = Condition()
        self.waits_until = now + FIRST_LOOK_S  # requests wait so long for it to be ready
        self.unloaded_at = -math.inf  # the router began to unload it
        self._since = self._reported_at = now
        self._symbols: float | None = None

    def standing(self, now: float) -> Standing:
        """Return what a request finds here at `now`."""
        if self.condition.state == "ready":
            if self.breaker.allows(now):
                return "free" if self.in_flight < self.settings.concurrency else "busy"
            return "probing" if self.breaker.state == "probing" else "open"
        if self.condition.state == "out":
            return "out"
        if self.condition.state in ("idle", "unloading"):
            return "idle"
        if self.condition.state == "unknown" and self.breaker.state == "open" and not self.breaker.allows(now):
            return "open"
        return "loading" if now < self.waits_until else "out"

    def report(self, condition: Condition, now: float) -> None:
        """Take a condition over. One that is ready after an outage may be probed at once: its watcher has asked it."""
        before, self.condition, self._reported_at = self.condition, condition, now
        if condition.state != before.state:
            self._since = now
            if condition.state == "unloading":
                self.unloaded_at = now
            if before.state in ("loading", "unknown", "idle") and condition.state == "ready":
                self.breaker.retry(now)
        if condition.state == "unknown":
            self.waits_until = self._since + FIRST_LOOK_S
        elif condition.eta_s is None:
            self.waits_until = self._since + LOAD_S
        else:
            self.waits_until = now + condition.eta_s + GRACE_S

    def ready_in_s(self, now: float) -> float | None:
        """Return the time until one that loads is ready, as last reported; None if unknown."""
        eta_s = self.condition.eta_s
        return None if eta_s is None else max(0.0, eta_s - (now - self._reported_at))

    def snapshot(self, now: float) -> BackendSnapshot:
        """Return how it stands."""
        until = self.breaker.open_until
        return BackendSnapshot(
            condition=self.condition,
            breaker=self.breaker.state,
            open_s=None if until is None else max(0.0, until - now),
            failures=self.breaker.failures,
            in_flight=self.in_flight,
            num_sent=self.num_sent,
            concurrency=self.settings.concurrency,
        )

    def took(self, seconds: float) -> None:
        """Count the time of a whole answer."""
        self.hold_s = seconds if self.hold_s is None else self.hold_s + HOLD_WEIGHT * (seconds - self.hold_s)

    def repeats(self, now: float) -> bool:
        """Count an answer that repeats one symbol; return whether it is the second in ten minutes."""
        is_second = self._symbols is not None and now - self._symbols <= SYMBOL_S
        self._symbols = None if is_second else now
        return is_second
