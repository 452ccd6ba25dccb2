"""Decides which backend answers which request: events in, effects out, with the time given and without input or output.

A request goes to the first backend of its model that has a place; it waits where places are taken or a backend loads,
and is refused where neither will help. A failure before the first content sends it on, to each backend once; where the
router had unloaded the backend beneath it, it waits for that one again.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from eyas.base.serving.breaker import BreakerState
from eyas.base.serving.failures import BREAKING, FailureKind
from eyas.base.serving.waiting import Waiting
from eyas.router.manager.backend import Backend
from eyas.router.manager.events import (
    Arrived,
    Changed,
    Closed,
    Done,
    Effect,
    Event,
    Failed,
    Full,
    Left,
    Reported,
    Send,
    Shown,
    Sighted,
    TimePassed,
)
from eyas.router.manager.happenings import Happening, HappeningKind, Snapshot
from eyas.router.manager.queue import FairQueue
from eyas.router.manager.refusals import refusal
from eyas.router.manager.request import Request
from eyas.router.settings.schema import RouterSettings

__all__ = ["Policy"]

MAX_SESSIONS = 10_000


class Policy:
    """State of all requests and backends. The same events at the same times have the same effects."""

    def __init__(self, settings: RouterSettings, now: float) -> None:
        self.backends = {backend.name: Backend(backend, now) for backend in settings.backends}
        self._models = tuple(model.name for model in settings.models)
        self._twins: dict[str, tuple[str, ...]] = {
            name: tuple(twin.name for twin in settings.backends if twin.twin_of == name) for name in self.backends
        }
        self._queue: FairQueue[Request] = FairQueue(settings.max_queue)
        self._requests: dict[int, Request] = {}  # that have not ended
        self._homes: OrderedDict[tuple[str, str], str] = OrderedDict()  # of sessions, the newest last
        self._is_closed = False
        self._effects: list[Effect] = []
        self._unix_s = 0.0

    def decide(self, event: Event, now: float, unix_s: float = 0.0) -> list[Effect]:
        """Return what follows from `event` at `now`, in order. `unix_s` stands in happenings and decides nothing.

        An event of a visit that has ended, or of a backend that it has not, changes nothing.
        """
        self._effects, self._unix_s = [], unix_s
        match event:
            case Arrived():
                self._arrived(event, now)
            case Done():
                self._done(event, now)
            case Shown():
                if request := self._requests.get(event.visit):
                    request.is_shown = request.backend is not None
            case Failed():
                self._failed(event, now)
            case Full():
                self._full(event, now)
            case Left():
                self._left(event, now)
            case Reported():
                self._reported(event, now)
            case Sighted():
                self._looped(self.backends[event.backend], event.kind, event.detail, now, None)
            case TimePassed():
                self._review(now)
            case Closed():
                self._is_closed = True
                self._review(now)
        return self._effects

    # -- what others may know ------------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """Return when time alone will change something; None if only events can."""
        at = min((request.wake_at for request in self._queue.order()), default=math.inf)
        return None if at == math.inf else at

    def to_load(self, now: float) -> dict[str, float]:
        """Return the backends that requests want loaded, each with the time at which the oldest of these came."""
        found: dict[str, float] = {}
        for request in self._queue.order():
            if (name := request.to_load(self.backends, now)) is not None:
                found[name] = min(found.get(name, request.since), request.since)
        return found

    def positions(self) -> dict[int, int]:
        """Return the position of every visit that waits among those of its model, in order of service."""
        counts: dict[str, int] = {}
        positions = {}
        for request in self._queue.order():
            counts[request.wanted.model] = counts.get(request.wanted.model, 0) + 1
            positions[request.number] = counts[request.wanted.model]
        return positions

    def waiting(self, visit: int, position: int, now: float) -> Waiting:
        """Return why a visit waits that is at `position`, and a guess how long."""
        return self._requests[visit].waiting(self.backends, position, now)

    def snapshot(self, now: float) -> Snapshot:
        """Return how everything stands."""
        queued = dict.fromkeys(self._models, 0)
        for request in self._queue.order():
            queued[request.wanted.model] = queued.get(request.wanted.model, 0) + 1
        return Snapshot(
            backends={name: backend.snapshot(now) for name, backend in self.backends.items()}, queued=queued
        )

    # -- events --------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float) -> None:
        wanted = event.wanted
        order, home = wanted.backends, None
        if wanted.sticky is not None:
            home = self._homes.get((wanted.model, wanted.sticky))
            if home not in order:
                home = None
            elif wanted.must_stick:
                order = (home,)
            else:
                order = (home, *(name for name in order if name != home))
        request = Request(event.visit, wanted.client, wanted, order, home, now)
        self._requests[event.visit] = request
        self._step(request, now)

    def _done(self, event: Done, now: float) -> None:
        if request := self._at_backend(event.visit):
            self._end(request, now, "done")

    def _failed(self, event: Failed, now: float) -> None:
        request = self._at_backend(event.visit)
        if request is None:
            return
        if request.is_shown:
            self._end(request, now, "failed", event.detail, event.kind)
            return
        may_come_back = request.is_cut(event.kind) and not request.is_back
        backend = self._free(request, now, "failed", event.detail, event.kind)
        if may_come_back:  # once: its own answer may be what takes the memory
            request.is_back = True
        else:
            request.tried[backend.name] = event.kind
        if event.kind not in BREAKING and not request.wanted.must_stick:
            twins = [name for name in self._twins[backend.name] if name not in request.tried]
            request.order = (*twins, *(name for name in request.order if name not in twins))
            request.home = None
        self._step(request, now)
        self._settle(backend, now)

    def _full(self, event: Full, now: float) -> None:
        request = self._at_backend(event.visit)
        if request is None:
            return
        if request.is_shown:
            self._end(request, now, "full")
            return
        backend = self._free(request, now, "full")
        request.tried[backend.name] = "full"
        if event.retry_after_s is not None:
            request.retry_after_s = min(request.retry_after_s, event.retry_after_s)
        self._step(request, now)
        self._settle(backend, now)

    def _left(self, event: Left, now: float) -> None:
        request = self._requests.get(event.visit)
        if request is None:
            return
        if request.backend is not None:
            self._end(request, now, "left")
            return
        self._queue.remove(request)
        del self._requests[request.number]
        self._tell("left", request, seconds=now - request.since)

    def _reported(self, event: Reported, now: float) -> None:
        backend = self.backends[event.backend]
        before = backend.condition
        backend.report(event.condition, now)
        state, reason = event.condition.state, event.condition.reason
        if (before.state, before.reason) != (state, reason):
            text = f"{state}: {reason}" if reason else state
            self._effects.append(
                Happening(time_s=self._unix_s, kind="condition", backend=backend.name, text=text, condition=state)
            )
        self._review(now)

    def _looped(self, backend: Backend, kind: FailureKind, detail: str, now: float, request: Request | None) -> None:
        """Report an answer that repeats itself, and the second one of a single symbol."""
        if request is None:
            self._effects.append(
                Happening(time_s=self._unix_s, kind="degenerate", backend=backend.name, text=detail, failure=kind)
            )
        else:
            self._tell("degenerate", request, backend, text=detail, failure=kind)
        if kind == "one_symbol" and backend.repeats(now):
            text = "two answers repeated one symbol within 10 minutes"
            self._effects.append(Happening(time_s=self._unix_s, kind="loops", backend=backend.name, text=text))

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _step(self, request: Request, now: float) -> None:
        """Send a request, let it wait, or refuse it."""
        found = None if self._is_closed else request.look(self.backends, now)
        if found is None:
            self._refuse(request, now)
        elif isinstance(found, Backend):
            self._send(request, found, now)
        elif request.outlook is not None:
            if request.waits(found, now):
                self._effects.append(Changed(request.number))
        elif self._has_room(request, now):
            request.waits(found, now)
            self._queue.push(request)
            if (name := request.to_load(self.backends, now)) is not None:
                self._tell("wanted", request, self.backends[name])

    def _has_room(self, request: Request, now: float) -> bool:
        """Make room in a full queue for a request, or refuse it. Those that come back have waited before."""
        if request.tried or request.is_back or not self._queue.is_full:
            return True
        other = self._queue.displaced_by(request.client)
        self._refuse(other or request, now, is_crowded=True)
        return other is not None

    def _send(self, request: Request, backend: Backend, now: float) -> None:
        before = backend.breaker.state
        request.ticket = backend.breaker.enter(now)
        assert request.ticket is not None, "the backend was found free"
        if request.outlook is not None:
            self._queue.served(request)
            request.waits_no_more(now)
        request.backend, request.sent_at = backend, now
        backend.in_flight += 1
        backend.num_sent += 1
        if request.wanted.sticky is not None and not request.wanted.must_stick:
            session = request.wanted.model, request.wanted.sticky
            self._homes[session] = backend.name
            self._homes.move_to_end(session)
            if len(self._homes) > MAX_SESSIONS:
                self._homes.popitem(last=False)
        is_probe = request.ticket.is_probe
        self._effects.append(Send(request.number, backend.name, is_probe))
        self._tell("sent", request, backend, seconds=now - request.since, is_probe=is_probe)
        self._tell_breaker(backend, before)

    def _refuse(self, request: Request, now: float, *, is_crowded: bool = False) -> None:
        if request.outlook is not None:
            self._queue.remove(request)
            request.waits_no_more(now)
        del self._requests[request.number]
        refused = refusal(request, self.backends, now, is_crowded=is_crowded, is_closed=self._is_closed)
        self._effects.append(refused)
        self._tell("refused", request, text=refused.message, status=refused.status, seconds=now - request.since)

    def _at_backend(self, visit: int) -> Request | None:
        request = self._requests.get(visit)
        return None if request is None or request.backend is None else request

    def _free(
        self, request: Request, now: float, kind: HappeningKind, text: str = "", failure: FailureKind | None = None
    ) -> Backend:
        """Free the place of a request at its backend, and let the breaker know how it went."""
        backend, ticket = request.backend, request.ticket
        assert backend is not None and ticket is not None
        before = backend.breaker.state
        if kind == "done":
            backend.breaker.succeeded(ticket)
            backend.took(now - request.sent_at)
        elif failure in BREAKING and not request.is_cut(failure):
            backend.breaker.failed(ticket, now)
        else:
            backend.breaker.give_back(ticket)
        backend.in_flight -= 1
        self._tell(kind, request, backend, text=text, failure=failure, seconds=now - request.sent_at)
        if failure is not None and failure not in BREAKING:
            self._looped(backend, failure, text, now, request)
        elif kind in ("done", "failed"):  # a probe that gave its place back is no news
            self._tell_breaker(backend, before)
        request.backend = request.ticket = None
        request.since = now
        return backend

    def _end(
        self, request: Request, now: float, kind: HappeningKind, text: str = "", failure: FailureKind | None = None
    ) -> None:
        """End a request at its backend."""
        del self._requests[request.number]
        self._settle(self._free(request, now, kind, text, failure), now)

    def _settle(self, backend: Backend, now: float) -> None:
        """Decide for those that wait, after a place at `backend` is free or its breaker has changed."""
        if backend.breaker.state == "open":
            self._review(now)
            return
        while len(self._queue) and backend.standing(now) == "free":
            for request in self._queue.order():
                if backend.name in request.order and request.look(self.backends, now) is backend:
                    self._send(request, backend, now)
                    break
            else:
                return

    def _review(self, now: float) -> None:
        """Decide again for all that wait."""
        for request in list(self._queue.order()):
            self._step(request, now)

    # -- happenings ----------------------------------------------------------------------------------------------------

    def _tell(
        self,
        kind: HappeningKind,
        request: Request,
        backend: Backend | None = None,
        *,
        text: str = "",
        failure: FailureKind | None = None,
        seconds: float | None = None,
        status: int | None = None,
        is_probe: bool = False,
    ) -> None:
        self._effects.append(
            Happening(
                time_s=self._unix_s,
                kind=kind,
                backend=None if backend is None else backend.name,
                model=request.wanted.model,
                route=request.wanted.route,
                text=text,
                failure=failure,
                seconds=seconds,
                status=status,
                is_probe=is_probe,
            )
        )

    def _tell_breaker(self, backend: Backend, before: BreakerState) -> None:
        state = backend.breaker.state
        if state == before:
            return
        match state:
            case "open":
                text = f"open: {backend.breaker.failures} failures in a row"
            case "probing":
                text = "one request tries it again"
            case "closed":
                text = "closed: it answers again"
        self._effects.append(
            Happening(time_s=self._unix_s, kind="breaker", backend=backend.name, text=text, breaker=state)
        )
