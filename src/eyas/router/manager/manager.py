"""The backend manager: runs the policy inside the event loop, with clocks, timers and visits that can be awaited.

Whatever loads or stops backends (backends/, and later memory/) tells it of them by `report`, and learns from listeners
and `snapshot` what is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable

from eyas.base.serving.failures import FailureKind
from eyas.base.serving.waiting import Waiting
from eyas.router.manager.condition import Condition
from eyas.router.manager.events import (
    Arrived,
    Changed,
    Closed,
    Done,
    Event,
    Failed,
    Full,
    Left,
    Refuse,
    Reported,
    Send,
    Shown,
    Sighted,
    TimePassed,
)
from eyas.router.manager.happenings import Happening, Snapshot
from eyas.router.manager.policy import Policy
from eyas.router.manager.visit import Desk, Go, NoBackend, Visit, Wanted
from eyas.router.settings.schema import RouterSettings

__all__ = ["Manager"]

log = logging.getLogger(__name__)

NEWS_S = 1.0  # between two looks at positions: a place that is freed changes those of all who wait
REPEAT_S = 5.0  # between two news of a visit for which nothing has changed
MIN_TIMER_S = 0.001  # a timer may be early; the next one is then not set for at once


class Manager(Desk):
    """Decides where requests go. All calls are made inside one event loop."""

    def __init__(self, settings: RouterSettings, *, now: Callable[[], float] = time.monotonic) -> None:
        self.listeners: list[Callable[[Happening], None]] = []
        self._now = now
        self._policy = Policy(settings, now())
        self._visits: dict[int, _Visit] = {}  # that have not ended
        self._waiting: dict[int, _Visit] = {}
        self._num_visits = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._news_timer: asyncio.TimerHandle | None = None

    def arrive(self, wanted: Wanted) -> Visit:
        """Take a request. Raises NoBackend if the queue is full or no backend can answer."""
        self._num_visits += 1
        visit = _Visit(self, self._num_visits, wanted)
        self._visits[visit.number] = self._waiting[visit.number] = visit
        self.decide(Arrived(visit.number, wanted))
        if isinstance(visit.verdict, NoBackend):
            raise visit.verdict
        return visit

    def report(self, backend: str, condition: Condition) -> None:
        """Take over what a watcher has seen. What a backend is answering goes on."""
        self.decide(Reported(backend, condition))

    def sighted(self, backend: str, kind: FailureKind, detail: str = "") -> None:
        """Count a loop that the guard saw and let pass."""
        self.decide(Sighted(backend, kind, detail))

    def condition(self, backend: str) -> Condition:
        """Return what was last reported of a backend."""
        return self._policy.backends[backend].condition

    def to_load(self) -> dict[str, float]:
        """Return the backends that requests want loaded, each with the time (of `now`) since when the oldest waits."""
        return self._policy.to_load(self._now())

    def snapshot(self) -> Snapshot:
        """Return how everything stands."""
        return self._policy.snapshot(self._now())

    def close(self) -> None:
        """Refuse all that wait and all that come; answers go on."""
        self.decide(Closed())

    # -- for visits ----------------------------------------------------------------------------------------------------

    def decide(self, event: Event) -> None:
        """Let the policy decide on `event`, and do what it says; listeners hear of it last."""
        now = self._now()
        happenings = []
        for effect in self._policy.decide(event, now, time.time()):
            if isinstance(effect, Happening):
                happenings.append(effect)
            elif isinstance(effect, Send):
                self._waiting.pop(effect.visit).go(effect.backend, is_probe=effect.is_probe)
            elif isinstance(effect, Refuse):
                self.forget(effect.visit).refuse(
                    NoBackend(effect.message, effect.status, retry_after_s=effect.retry_after_s, code=effect.code)
                )
            elif isinstance(effect, Changed):
                self._visits[effect.visit].wake()
        self._set_timers(now)
        for happening in happenings:
            for listener in self.listeners:
                try:
                    listener(happening)
                except Exception:
                    log.exception("a listener failed on %s", happening)

    def forget(self, number: int) -> _Visit:
        """Drop a visit that has ended."""
        self._waiting.pop(number, None)
        return self._visits.pop(number)

    def waits(self, visit: _Visit) -> None:
        """Record that a visit waits again, before its event is decided on."""
        self._waiting[visit.number] = visit

    def why(self, number: int) -> tuple[Waiting, float]:
        """Return why a visit waits, and the time."""
        now = self._now()
        return self._policy.waiting(number, self._policy.positions()[number], now), now

    def go_to(self, backend: str, wanted: Wanted, *, is_probe: bool) -> Go:
        """Return the news that a request goes to `backend`."""
        budgets = self._policy.backends[backend].settings.budgets.with_spans(wanted.budgets)
        return Go(backend=backend, is_probe=is_probe, budgets=budgets)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _set_timers(self, now: float) -> None:
        at = self._policy.wake_at() if self._waiting else None
        if self._timer is not None and (at is None or at < self._timer_at):
            self._timer.cancel()
            self._timer = None
        if at is not None and self._timer is None:  # one that is set for too early will look, and set the next
            self._timer = asyncio.get_running_loop().call_later(max(MIN_TIMER_S, at - now), self._time_passed)
            self._timer_at = at
        if self._waiting and self._news_timer is None:
            self._news_timer = asyncio.get_running_loop().call_later(NEWS_S, self._send_news)
        elif not self._waiting and self._news_timer is not None:
            self._news_timer.cancel()
            self._news_timer = None

    def _time_passed(self) -> None:
        self._timer = None
        self.decide(TimePassed())

    def _send_news(self) -> None:
        """Wake the visits whose position has changed, or that were silent for long."""
        self._news_timer = None
        now, positions = self._now(), self._policy.positions()
        for number, visit in self._waiting.items():
            visit.look(self._policy.waiting(number, positions[number], now), now)
        self._set_timers(now)


class _Visit:
    """One request: what the manager has decided, until its relay asks for it."""

    __slots__ = (
        *("_changed", "_is_at_backend", "_is_over", "_is_shown", "_manager", "_news", "_news_at", "_wanted"),
        *("number", "verdict"),
    )

    def __init__(self, manager: Manager, number: int, wanted: Wanted) -> None:
        self._manager = manager
        self._wanted = wanted
        self.number = number
        self.verdict: Go | NoBackend | None = None  # what ends the wait
        self._is_at_backend = False  # the relay knows of it
        self._is_shown = False
        self._is_over = False
        self._changed: asyncio.Event | None = None
        self._news: Waiting | None = None  # the newest
        self._news_at = 0.0

    # -- for the relay -------------------------------------------------------------------------------------------------

    def place(self) -> Go | None:
        if self._is_at_backend or self._is_over or not isinstance(self.verdict, Go):
            return None
        go, self.verdict, self._is_at_backend = self.verdict, None, True
        return go

    async def news(self) -> AsyncGenerator[Waiting | Go, None]:
        """Yield a change of state at once, one of the position within a second, and something every 5 seconds."""
        if self._is_at_backend:
            raise RuntimeError("the visit is at a backend: there is no news before it has failed or is full")
        while self.verdict is None and not self._is_over:
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            self._news, self._news_at = self._manager.why(self.number)
            yield self._news
            await self._changed.wait()
        if isinstance(self.verdict, NoBackend):
            raise self.verdict
        if (go := self.place()) is not None:
            yield go

    def shown(self) -> None:
        if not self._is_shown and self._is_at_backend:
            self._is_shown = True
            self._manager.decide(Shown(self.number))

    def failed(self, kind: FailureKind, detail: str = "") -> None:
        if self._leaves_backend("failed"):
            status = 504 if kind == "budget" else 503
            self._go_on_or_end(f"the backend failed inside the answer ({kind})", status)
            self._manager.decide(Failed(self.number, kind, detail))

    def full(self, retry_after_s: float | None = None) -> None:
        if self._leaves_backend("full"):
            self._go_on_or_end("the backend said inside the answer that it is full", 503)
            self._manager.decide(Full(self.number, retry_after_s))

    def done(self) -> None:
        if self._leaves_backend("done"):
            self._end()
            self._manager.decide(Done(self.number))

    def left(self) -> None:
        if not self._is_over:
            self._end()
            self._manager.decide(Left(self.number))
            self.wake()

    def _leaves_backend(self, how: str) -> bool:
        """Return whether the visit goes on to end its stay at a backend; what has ended stays as it is."""
        if self._is_over:
            return False
        if not self._is_at_backend:
            raise RuntimeError(f"{how}: the visit is at no backend")
        self._is_at_backend = False
        return True

    def _go_on_or_end(self, why: str, status: int) -> None:
        if self._is_shown:
            self._end()
            self.verdict = NoBackend(why, status)
        else:
            self._manager.waits(self)

    def _end(self) -> None:
        self._is_over = True
        self._manager.forget(self.number)

    # -- for the manager -----------------------------------------------------------------------------------------------

    def go(self, backend: str, *, is_probe: bool) -> None:
        """Take note that the visit has a place at `backend`."""
        self.verdict = self._manager.go_to(backend, self._wanted, is_probe=is_probe)
        self.wake()

    def refuse(self, why: NoBackend) -> None:
        """Take note that no backend takes the visit."""
        self._is_over = True
        self.verdict = why
        self.wake()

    def wake(self) -> None:
        """Let `news` look again."""
        if self._changed is not None:
            self._changed.set()

    def look(self, waiting: Waiting, now: float) -> None:
        """Let `news` look again if its newest is old, or no longer true."""
        if self._news is not None and (
            (waiting.state, waiting.position) != (self._news.state, self._news.position)
            or now - self._news_at >= REPEAT_S
        ):
            self.wake()
