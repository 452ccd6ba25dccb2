"""The memory orchestrator: measures each pool, lets its policy decide, and has watchers load and unload backends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from eyas.base.errors import EyasError, UserError
from eyas.router.backends.backends import Backends
from eyas.router.backends.planned import Planned
from eyas.router.backends.threads import in_thread
from eyas.router.manager.condition import Condition
from eyas.router.manager.happenings import Happening, Snapshot
from eyas.router.memory.events import (
    Effect,
    Event,
    Fails,
    Learnt,
    Load,
    Looked,
    Noted,
    NoteKind,
    Ordered,
    Reading,
    State,
    Stood,
    Unload,
    Usage,
    Waits,
)
from eyas.router.memory.footprints import Footprints, key_of
from eyas.router.memory.meters import Meter, MeterError, meter_of
from eyas.router.memory.policy import PoolPolicy
from eyas.router.memory.status import PoolStatus, status_of
from eyas.router.settings.schema import BackendSettings, PoolSettings, RouterSettings

__all__ = ["Desk", "Orchestrator", "Pool", "Times"]

log = logging.getLogger(__name__)
BAD: tuple[NoteKind, ...] = ("late", "larger", "unknown", "refused")


class Desk(Protocol):
    """Knows of requests: the manager."""

    def to_load(self) -> dict[str, float]:
        """Return the backends that requests want loaded, and since when."""

    def snapshot(self) -> Snapshot:
        """Return how everything stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Times in seconds between two looks, and until a load that failed may be tried again."""

    calm_s: float = 5.0
    watched_s: float = 1.0
    returning_s: float = 0.25
    failed_s: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A pool that is looked after. `policy` decides, and knows how it stands."""

    settings: PoolSettings
    meter: Meter
    policy: PoolPolicy


class Orchestrator:
    """Looks after all pools inside one event loop. `listeners` hear of loads, evictions and pressure."""

    def __init__(
        self,
        settings: RouterSettings,
        backends: Backends,
        desk: Desk,
        folder: Path,
        *,
        times: Times | None = None,
        make_meter: Callable[[PoolSettings], Meter] = meter_of,
    ) -> None:
        self.listeners: list[Callable[[Happening], None]] = []
        self._backends, self._desk, self._settings = backends, desk, settings.memory
        self._times = times or Times()
        self._footprints = Footprints(folder) if settings.pools else None
        self._keys = {name: key_of(planned.plan) for name, planned in backends.planned.items()}
        self._pool_of: dict[str, Pool] = {}
        self._found: set[str] = set()  # of which it is known whether they run
        self.pools: list[Pool] = []
        self._wake = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._saving: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        for pool in settings.pools:
            members = {one.name: one for one in settings.backends if one.pool == pool.name and one.plan is not None}
            self.pools.append(self._pool(pool, members, settings, make_meter(pool)))

    def _pool(
        self, pool: PoolSettings, members: Mapping[str, BackendSettings], settings: RouterSettings, meter: Meter
    ) -> Pool:
        policy = PoolPolicy(
            list(members.values()),
            self._footprints.find(self._keys, members) if self._footprints is not None else {},
            settings.memory,
            time.monotonic(),
            system=pool.system,
            are_owners_whole=meter.are_owners_whole,
        )
        found = Pool(settings=pool, meter=meter, policy=policy)
        self._pool_of |= dict.fromkeys(members, found)
        return found

    # -- what it hears -------------------------------------------------------------------------------------------------

    def has(self, backend: str) -> bool:
        """Return whether it loads and unloads a backend."""
        return backend in self._pool_of

    def seen(self, backend: str, condition: Condition) -> None:
        """Take note of a backend's condition, as its watcher reports it."""
        pool = self._pool_of.get(backend)
        state = _state_of(condition)
        if pool is None or state is None:
            return
        self._found.add(backend)
        if pool.policy.members[backend].state == state:
            return
        if self._has_found(pool):  # nothing is decided by who waited a moment ago
            self._decide(pool, self._looked(pool))
        self._decide(pool, Stood(backend, state))
        if state == "out" and condition.cause == "failed":
            self._rest_later(backend, self._times.failed_s)
        self._wake.set()

    def happened(self, event: Happening) -> None:
        """Take note that a request waits until a backend is loaded. A listener of the manager."""
        if event.kind == "wanted":
            self._wake.set()

    def status(self) -> tuple[PoolStatus, ...]:
        """Return how all pools stand."""
        now = time.monotonic()
        return tuple(status_of(pool.settings, pool.policy, self._settings, now) for pool in self.pools)

    def order(self, backend: str, order: Literal["load", "unload", "pin", "unpin"]) -> None:
        """Load, unload, pin or unpin a backend, as a person wants it. Raises UserError."""
        pool = self._pool_of.get(backend)
        if pool is None:
            raise UserError(f"{backend} is in no pool: its memory is not looked after here")
        if order == "load" and self._desk.snapshot().backends[backend].condition.state == "out":
            if pool.policy.members[backend].state == "ready":  # it runs: it is asked again
                self._backends.watcher(backend).start()
                return
            self._backends.watcher(backend).rest()
        self._decide(pool, Ordered(backend, order))
        self._wake.set()

    # -- what it does --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Begin to look after the pools, inside the event loop, when backends are watched."""
        self._task = asyncio.create_task(self._run(), name="memory")

    async def close(self) -> None:
        """End. What is loaded goes on."""
        for timer in self._timers.values():
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._saving:
            await asyncio.wait(self._saving)

    async def _run(self) -> None:
        while True:
            for pool in self.pools:
                try:
                    await self._look(pool)
                except Exception:
                    log.exception("looking after the memory of %s failed", pool.settings.name)
            if not any(pool.policy.is_moving for pool in self.pools):
                self._prepare()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
            self._wake.clear()

    def _prepare(self) -> None:
        """Have a start ready if a backend may be loaded next, while nothing else wants the processor."""
        members = [one for pool in self.pools for one in pool.policy.members.values() if self._has_found(pool)]
        if any(one.state == "idle" for one in members):
            self._backends.starters.prepare()

    def _pause_s(self) -> float:
        if any(pool.policy.is_returning for pool in self.pools):
            return self._times.returning_s
        if len(self._found) < len(self._pool_of):
            return self._times.returning_s
        return self._times.watched_s if any(pool.policy.is_watched for pool in self.pools) else self._times.calm_s

    def _has_found(self, pool: Pool) -> bool:
        return self._found.issuperset(pool.policy.members)

    async def _look(self, pool: Pool) -> None:
        if not self._has_found(pool):
            return
        planned = {name: self._backends.planned[name] for name in pool.policy.members}
        try:
            reading = await in_thread(lambda: pool.meter.read(_marks(planned)))
        except MeterError as error:
            self._decide(pool, self._looked(pool, fault=str(error)))
        else:
            self._decide(pool, self._looked(pool, reading))

    def _looked(self, pool: Pool, reading: Reading | None = None, fault: str = "") -> Looked:
        snapshot, wanted = self._desk.snapshot(), self._desk.to_load()
        members = pool.policy.members
        return Looked(
            waiting={name: since for name, since in wanted.items() if name in members},
            usage={
                name: Usage(snapshot.backends[name].in_flight, snapshot.backends[name].num_sent) for name in members
            },
            reading=reading,
            fault=fault,
        )

    def _decide(self, pool: Pool, event: Event) -> None:
        for effect in pool.policy.decide(event, time.monotonic()):
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Load():
                self._backends.watcher(effect.backend).load()
            case Unload():
                self._backends.watcher(effect.backend).unload(effect.reason, effect.drain_s)
            case Waits():
                self._backends.watcher(effect.backend).rest(effect.reason)
            case Fails():
                self._backends.watcher(effect.backend).refuse(effect.reason)
                self._rest_later(effect.backend, effect.again_s)
            case Learnt():
                self._keep(effect)
            case Noted():
                self._tell(effect)

    def _rest_later(self, backend: str, seconds: float) -> None:
        """Let a backend that could not be loaded be tried again."""
        if (timer := self._timers.pop(backend, None)) is not None:
            timer.cancel()

        def rest() -> None:
            self._timers.pop(backend, None)
            watcher = self._backends.watcher(backend)
            if watcher.is_out_for("memory", "failed"):
                watcher.rest()

        self._timers[backend] = asyncio.get_running_loop().call_later(seconds, rest)

    def _keep(self, learnt: Learnt) -> None:
        key, footprints = self._keys[learnt.backend], self._footprints
        assert footprints is not None
        task = asyncio.create_task(in_thread(lambda: footprints.keep(key, learnt.peak, learnt.steady)))
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    def _tell(self, noted: Noted) -> None:
        is_bad = noted.kind in BAD or "emergency" in noted.text
        log.log(logging.WARNING if is_bad else logging.INFO, "memory: %s %s", noted.backend or "", noted.text)
        happening = Happening(
            time_s=time.time(), kind="memory", backend=noted.backend, text=noted.text, memory=noted.kind,
            seconds=noted.seconds,
        )  # fmt: skip
        for listener in self.listeners:
            try:
                listener(happening)
            except Exception:
                log.exception("a listener failed on %s", happening)


def _marks(planned: Mapping[str, Planned]) -> dict[str, tuple[str, ...]]:
    """Return what runs of each backend; a store that cannot be read, on a full disk, says nothing of it."""
    found: dict[str, tuple[str, ...]] = {}
    for name, one in planned.items():
        try:
            found[name] = one.marks()
        except EyasError:
            found[name] = ()
    return found


def _state_of(condition: Condition) -> State | None:
    """Return what a condition means for memory; None: nothing new. One that is out may still hold its memory."""
    match condition.state:
        case "unknown":
            return None
        case "out":
            if condition.cause == "memory":
                return None
            return "out" if condition.cause in ("failed", "stopped") else "ready"
        case state:
            return state
