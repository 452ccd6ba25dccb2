"""Decides when requests begin, when the warm-up is over, and when a window is. Pure: the caller has the clock.

A closed loop keeps a number of requests running, an open one starts them at times drawn before (Poisson), whatever
comes back. The warm-up runs under the same load until two stretches in a row agree in the time that conversations wait
for a chunk: requests in progress, integrated over time, over chunks (Little's law), which no rate of arrivals changes.

The steady part ends after its time or number of requests. The load is kept up with further requests, which are
not measured, until all that overlap with the steady part have ended: the last measured ones run in company, too.
"""

from __future__ import annotations

import math
import random
from heapq import heappop, heappush
from typing import Literal

from msgspec import Struct

from eyas.bench.endpoint.records import Load

__all__ = ["Limits", "Pace", "Ticket"]

STRETCH_S = 1.0  # of the warm-up, at least
MIN_CHUNKS = 20  # in a stretch, and two for each request in progress
AGREEMENT = 0.1  # by which two stretches may differ
MAX_RUNNING = 2048  # requests of an open loop: a server that does not keep up collects them without end
PAUSE_S = 0.25  # before a place of a closed loop is filled again after a failure
SPARE_FAILURES = 5  # in a row, and three for each place, end a run

Phase = Literal["warm-up", "steady", "run-out"]


class Limits(Struct, frozen=True, kw_only=True):
    """Length of a steady part: `num_requests`, else `duration_s`; at least one request for each place.

    `warm_up_s` is the most that is spent on agreement before it.
    """

    warm_up_s: float = 30.0
    duration_s: float = 10.0
    num_requests: int | None = None


class Ticket(Struct, frozen=True, kw_only=True):
    """A request to begin: the `number`th of its window, due at `scheduled_s`."""

    number: int
    scheduled_s: float
    is_measured: bool


class Pace:
    """State of one window. `due` returns what to begin; `next_s` is when to ask again if nothing happens before."""

    def __init__(self, load: Load, limits: Limits, *, start_s: float, seed: int) -> None:
        self._load, self._limits, self._start_s = load, limits, start_s
        self._rng = random.Random(seed)
        self._free = [start_s] * (load.concurrency or 0)  # a heap: when places become free
        self._arrival_s = start_s + self._gap_s() if load.rate else math.inf
        self._num = self._num_measured = self._failures_in_row = 0
        self._overlapping: set[int] = set()  # numbers of those running that the window waits for
        self._num_running = 0
        self._area = 0.0  # of requests in progress over time, in this stretch
        self._area_at = self._stretch_at = start_s
        self._num_chunks = 0
        self._before: float | None = None  # seconds of conversations a chunk, in the stretch before
        self.phase: Phase = "warm-up"
        self.is_warm = True
        self.started_s = self.ended_s = math.nan
        self.failure = ""

    @property
    def is_over(self) -> bool:
        """Whether everything that belongs to the window has ended, or nothing more will come of it."""
        return bool(self.failure) or (self.phase == "run-out" and not self._overlapping)

    @property
    def num_running(self) -> int:
        """Requests in progress."""
        return self._num_running

    @property
    def num_measured(self) -> int:
        """Requests begun so far that are measured."""
        return self._num_measured

    def due(self, now: float) -> list[Ticket]:
        """Return the requests to begin now."""
        self._turn(now)
        tickets = []
        while self._free and self._free[0] <= now and not self.is_over:
            tickets.append(self._ticket(heappop(self._free), now))
        while self._arrival_s <= now and not self.is_over:
            tickets.append(self._ticket(self._arrival_s, now))
            self._arrival_s += self._gap_s()
            if self._num_running > MAX_RUNNING:
                self.failure = (
                    f"more than {MAX_RUNNING:,} requests at once: the endpoint does not keep up with the rate"
                )
        return tickets

    def next_s(self, now: float) -> float:
        """Return when to call `due` again at the latest."""
        wanted = self._free[0] if self._free else self._arrival_s
        if self.phase == "warm-up":
            wanted = min(wanted, max(self._stretch_at + STRETCH_S, now + STRETCH_S / 20))
        elif self.phase == "steady" and self._limits.num_requests is None:
            end = self.started_s + self._limits.duration_s
            wanted = min(wanted, end if end > now else math.inf)
        return wanted

    def chunk(self) -> None:
        """Count a chunk of any request."""
        self._num_chunks += 1

    def ended(self, ticket: Ticket, now: float, *, has_failed: bool = False, why: str = "") -> None:
        """Take the end of a request. `why` ends the window at once: no further request would fare better."""
        self._integrate(now)
        self._num_running -= 1
        self._overlapping.discard(ticket.number)
        if self._load.concurrency is not None:
            heappush(self._free, now + PAUSE_S if has_failed else now)
        self._failures_in_row = self._failures_in_row + 1 if has_failed else 0
        if why:
            self.failure = why
        elif self._failures_in_row >= SPARE_FAILURES + 3 * (self._load.concurrency or 1):
            self.failure = f"{self._failures_in_row} requests in a row failed"

    def stop(self, now: float, why: str) -> None:
        """End the window now, whatever it has."""
        if self.phase == "steady":
            self.ended_s = now
        self.failure = self.failure or why

    def _ticket(self, scheduled_s: float, now: float) -> Ticket:
        self._integrate(now)
        is_measured = self.phase == "steady"
        wanted = self._limits.num_requests
        if is_measured and wanted is not None and self._num_measured >= max(wanted, self._load.concurrency or 1):
            self._end(now)
            is_measured = False
        ticket = Ticket(number=self._num, scheduled_s=scheduled_s, is_measured=is_measured)
        self._num += 1
        self._num_running += 1
        self._num_measured += is_measured
        if self.phase != "run-out":
            self._overlapping.add(ticket.number)
        return ticket

    def _turn(self, now: float) -> None:
        """Go on to the next phase if it is time."""
        if self.phase == "warm-up":
            self._warm(now)
        elif self.phase == "steady" and self._limits.num_requests is None:
            has_enough = self._num_measured >= (self._load.concurrency or 1)
            if has_enough and now >= self.started_s + self._limits.duration_s:
                self._end(now)

    def _warm(self, now: float) -> None:
        is_late = now - self._start_s >= self._limits.warm_up_s
        if now - self._stretch_at >= STRETCH_S and self._num_chunks >= max(MIN_CHUNKS, 2 * self._num_running):
            self._integrate(now)
            value, before = self._area / self._num_chunks, self._before
            self._before, self._stretch_at = value, now
            self._area, self._num_chunks = 0.0, 0
            if before is not None and abs(value - before) <= AGREEMENT * max(value, before):
                self._begin(now)
                return
        if is_late:
            self.is_warm = False
            self._begin(now)

    def _begin(self, now: float) -> None:
        self.phase, self.started_s = "steady", now

    def _end(self, now: float) -> None:
        self.phase, self.ended_s = "run-out", now

    def _integrate(self, now: float) -> None:
        self._area += self._num_running * (now - self._area_at)
        self._area_at = now

    def _gap_s(self) -> float:
        return self._rng.expovariate(self._load.rate or 1.0)
