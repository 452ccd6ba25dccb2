"""Watches one backend: asks it again and again how it is, carries out its starts and stops, reports its condition."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from eyas.base.errors import EyasError, UserError
from eyas.fleet.running.policy import Status
from eyas.router.backends.asking import Asker, Inconclusive
from eyas.router.backends.judgement import Memory, after_canary, judge
from eyas.router.backends.planned import Planned, State
from eyas.router.backends.threads import in_thread
from eyas.router.manager.condition import Cause, Condition
from eyas.router.settings.schema import BackendSettings
from eyas.router.upstream.address import Address

__all__ = ["Pace", "Watcher"]

log = logging.getLogger(__name__)
T = TypeVar("T")
Order = Literal["find", "start", "stop", "unload", "plain"]

STOPPED = Condition(state="out", cause="stopped", reason="was stopped by a person")
IDLE = Condition(state="idle", reason="is loaded when it is asked for")
LOOPED = "its answers repeated one symbol without end"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Times in seconds between two looks at a backend, and between two attempts."""

    look_s: float = 3.0
    soon_s: float = 1.0  # while it is not ready
    retry_s: float = 5.0  # of a canary that said nothing; doubles
    max_retry_s: float = 60.0
    takeover_s: float = 30.0  # of a deployment whose supervisor has ended
    drain_s: float = 30.0  # that answers get to finish before its process is stopped
    poll_s: float = 0.2
    load_s: float = 0.1  # while requests wait for it to be loaded


class Watcher:
    """The watcher of one backend. `run` does everything; the other methods only say what is wanted, at once.

    `report` takes its condition. `num_in_flight` returns how many requests it has.
    """

    def __init__(
        self,
        settings: BackendSettings,
        address: Address,
        asker: Asker,
        *,
        instance: str,
        report: Callable[[Condition], None],
        num_in_flight: Callable[[], int] = lambda: 0,
        planned: Planned | None = None,
        is_pooled: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self._settings, self._address, self._asker = settings, address, asker
        self._instance = instance
        self._report = report
        self._num_in_flight = num_in_flight
        self._planned = planned
        self._pace = pace or Pace()
        self._memory = Memory()
        self._held: Condition | None = None  # what it stays in, whatever is seen of it
        self._order: Order | None = None if planned is None else "find" if is_pooled else "start"
        self._drain_s = self._pace.drain_s
        self._ordered = asyncio.Event()
        self._wake = asyncio.Event()
        self._loading_since: float | None = None
        self._seen: tuple[float | None, int] | None = None  # by which a restart of its deployment is known
        self._retry_s = 0.0
        self._taken_over_at = 0.0
        self._is_plain = False
        self._is_pooled = is_pooled

    def is_out_for(self, *causes: Cause) -> bool:
        """Return whether it is held out for one of these causes."""
        return self._held is not None and self._held.state == "out" and self._held.cause in causes

    # -- what is wanted ------------------------------------------------------------------------------------------------

    def look_now(self) -> None:
        """Look at once: a request could not reach it."""
        self._wake.set()

    def start(self) -> None:
        """Start it, or let it serve again; what was held against it is forgotten."""
        self._held, self._memory = None, Memory()
        self._report(Condition(reason="is looked at"))
        self._do("start")

    def stop(self) -> None:
        """Take it out, and end the processes of its plan."""
        self._hold(STOPPED)
        if self._planned is not None:
            self._planned.cancel()
        self._do("stop")

    def load(self) -> None:
        """Start its plan: there is room for it in its pool."""
        self._held, self._memory = None, Memory()
        self._report(Condition(state="loading", reason="is being loaded"))
        self._do("start")

    def unload(self, reason: str, drain_s: float) -> None:
        """End the processes of its plan when its answers are over, at the latest after `drain_s`; then it is idle."""
        self._drain_s = drain_s
        self._hold(Condition(state="unloading", reason=reason))
        if self._planned is not None:
            self._planned.cancel()
        self._do("unload")

    def rest(self, reason: str = IDLE.reason) -> None:
        """Be idle: nothing of it runs, and a request may have it loaded."""
        self._hold(Condition(state="idle", reason=reason))

    def refuse(self, reason: str) -> None:
        """Be out, since there is no room for it."""
        self._hold(Condition(state="out", cause="memory", reason=reason))

    def looped(self) -> None:
        """Take it out after answers of one symbol; restart its plan without speculation."""
        if self._held is not None:  # it is out, or restarting, already
            return
        if self._planned is None or self._is_plain:
            self._hold(Condition(state="out", cause="loops", reason=LOOPED))
            return
        self._hold(Condition(state="loading", reason=f"{LOOPED}; it restarts without speculation"))
        self._do("plain")

    def _do(self, order: Order) -> None:
        if self._planned is not None:
            self._order = order
            self._ordered.set()  # ends whatever it is asked
        self._wake.set()

    def _hold(self, condition: Condition) -> None:
        self._held = condition
        self._report(condition)

    # -- what is done --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                pause_s = await self._step()
            except Exception:
                log.exception("watching %s failed", self._settings.name)
                pause_s = self._pace.look_s
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _step(self) -> float:
        """Do the next thing; return how long to wait then."""
        planned = self._planned
        if planned is not None and self._order is not None:
            order, self._order = self._order, None
            self._ordered.clear()
            await self._carry_out(order, planned)
            return 0.0
        if self._held is not None:
            if planned is not None and self._held.state == "idle":
                status = await self._status(planned)
                if self._order is not None or self._held is None or self._held.state != "idle":
                    return 0.0  # it was ordered to do something meanwhile
                if status is not None and status != "stopping":
                    self._held, self._order = None, "start"
                    return 0.0
            self._report(self._held)
            return self._pace.look_s
        if planned is not None and (condition := await self._standing(planned)) is not None:
            self._memory = Memory(model=self._memory.model)
            self._tell(condition)
            return self._pace.load_s if self._is_pooled else self._pace.soon_s
        return await self._look()

    def _tell(self, condition: Condition) -> None:
        self._report(condition if self._held is None else self._held)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _look(self) -> float:
        look = await self._unless_ordered(self._asker.look(self._address))
        if look is None:
            return 0.0
        verdict = judge(self._settings, self._memory, look, time.monotonic(), instance=self._instance)
        self._memory = verdict.memory
        if not verdict.wants_canary:
            self._retry_s = 0.0
            if verdict.condition is not None:
                self._tell(verdict.condition)
            is_ready = verdict.condition is None or verdict.condition.state == "ready"
            return self._pace.look_s if is_ready else self._pace.soon_s
        if self._retry_s == 0.0 and verdict.condition is not None:
            self._tell(verdict.condition)
        memory = self._memory
        try:
            asked = await self._unless_ordered(self._canary(verdict.model))
        except Inconclusive as error:
            self._tell(Condition(reason=str(error), model=verdict.model))
            self._retry_s = min(self._pace.max_retry_s, 2 * self._retry_s or self._pace.retry_s)
            return self._retry_s
        if asked is None or memory is not self._memory:  # ordered to do something else meanwhile
            return 0.0
        self._memory = after_canary(memory, asked[0])
        again = judge(self._settings, self._memory, look, time.monotonic(), instance=self._instance)
        if again.condition is not None:
            self._tell(again.condition)
        return self._pace.look_s

    async def _canary(self, model: str | None) -> tuple[str | None]:
        return (await self._asker.canary(self._address, model, self._settings.role),)

    async def _unless_ordered(self, asking: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `asking`; None if an order comes first."""
        task = asyncio.ensure_future(asking)
        order = asyncio.ensure_future(self._ordered.wait())
        try:
            await asyncio.wait((task, order), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for one in (task, order):
                one.cancel()
            await asyncio.gather(task, order, return_exceptions=True)

    # -- plans ---------------------------------------------------------------------------------------------------------

    async def _carry_out(self, order: Order, planned: Planned) -> None:
        self._memory, self._loading_since = Memory(), None
        match order:
            case "find":
                await self._find(planned)
            case "start":
                await self._start(planned.start)
            case "unload":
                await self._drain()
                try:
                    await in_thread(planned.stop)
                except EyasError as error:
                    self._hold(Condition(state="out", cause="stopped", reason=f"is not wholly unloaded: {error}"))
                else:
                    if self._order is None:
                        self.rest()
            case "stop":
                self._drain_s = self._pace.drain_s
                await self._drain()
                try:
                    await in_thread(planned.stop)
                except EyasError as error:
                    self._hold(Condition(state="out", cause="stopped", reason=f"is not wholly stopped: {error}"))
            case "plain":
                self._drain_s = self._pace.drain_s
                await self._drain()
                await self._start(planned.restart_plainly, cause="loops")

    async def _start(self, start: Callable[[], None], *, cause: Literal["failed", "loops"] = "failed") -> None:
        """Bring its plan up; if that cannot be, it is out until a person starts it."""
        assert self._planned is not None
        task = asyncio.ensure_future(in_thread(start))
        while not task.done():
            reason = self._planned.note or "is being started"
            if self._held is None or self._held.state == "loading":
                self._report(self._held or Condition(state="loading", reason=reason))
            await asyncio.wait((task,), timeout=self._pace.soon_s)
        if self._order is not None:  # it was stopped meanwhile
            task.exception()
            return
        try:
            task.result()
            self._held = None
        except EyasError as error:
            text = str(error) if cause == "failed" else f"{LOOPED}, and it cannot restart without speculation: {error}"
            log.error("backend %s: %s", self._settings.name, text)
            self._hold(Condition(state="out", cause=cause, reason=text))

    async def _find(self, planned: Planned) -> None:
        """Take over what runs of it; else it is idle. What a router before was about to stop is stopped."""
        status = await self._status(planned)
        if self._order is not None:
            return
        if status is None:
            self.rest()
        elif status == "stopping":
            self.unload("its stop was interrupted", 0.0)
        else:
            self._order = "start"

    async def _status(self, planned: Planned) -> Status | None:
        """Return the status of its deployment if that is up, started by a router before or by a person; else None."""
        try:
            state = await in_thread(planned.state)
        except UserError as error:
            log.warning("backend %s: %s", self._settings.name, error)
            return None
        standing = state.standing
        return standing.status if standing is not None and standing.is_active else None

    async def _drain(self) -> None:
        end = time.monotonic() + self._drain_s
        while self._num_in_flight() and time.monotonic() < end and self._order is None:
            await asyncio.sleep(self._pace.poll_s)

    async def _standing(self, planned: Planned) -> Condition | None:
        """Return the condition of a backend whose deployment is not up; None if it can be asked."""
        try:
            state = await in_thread(planned.state)
        except UserError as error:  # a full disk; the server can be asked all the same
            log.warning("backend %s: %s", self._settings.name, error)
            return None
        standing = state.standing
        if standing is None:
            return Condition(state="out", cause="stopped", reason="its deployment is gone; start it again")
        if standing.is_active and not state.is_supervised:
            await self._take_over(planned)
        self._notice(state)
        match standing.status:
            case "starting" | "restarting":
                now = time.monotonic()
                self._loading_since = now if self._loading_since is None else self._loading_since
                eta_s = max(0.0, self._loading_since + planned.limit_s - now)
                return Condition(state="loading", reason=standing.note or "starts", eta_s=eta_s)
            case "stopping" | "stopped" if self._is_pooled:  # a request may have it loaded again
                self._loading_since = None
                if standing.status == "stopping":
                    return Condition(state="unloading", reason="its deployment is being stopped")
                self.rest()
                return self._held
            case "stopping" | "stopped":
                self._loading_since = None
                return Condition(state="out", cause="stopped", reason="its deployment was stopped")
            case "failed":
                self._loading_since = None
                return Condition(state="out", cause="failed", reason=standing.note)
        if self._loading_since is not None and standing.status == "ready":  # fleet has just asked it the canary
            self._memory = Memory(model=self._memory.model, is_sound=True)
        self._loading_since = None
        return None

    def _notice(self, state: State) -> None:
        """Notice a restart between two looks, after which it is asked everything again; and how it runs."""
        assert state.standing is not None
        seen = state.standing.ready_since, state.standing.restarts
        if self._seen is not None and seen != self._seen:
            self._memory = Memory(model=self._memory.model)
        self._seen = seen
        if state.is_plain and not self._is_plain:
            log.warning("backend %s runs without speculation: %s", self._settings.name, LOOPED)
        self._is_plain = state.is_plain

    async def _take_over(self, planned: Planned) -> None:
        """Give a deployment whose supervisor was killed a new one."""
        now = time.monotonic()
        if now < self._taken_over_at + self._pace.takeover_s and self._taken_over_at:
            return
        self._taken_over_at = now
        try:
            await in_thread(planned.start)
        except EyasError as error:
            log.error("backend %s: it has no supervisor: %s", self._settings.name, error)
