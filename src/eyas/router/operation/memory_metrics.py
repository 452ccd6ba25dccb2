"""Prometheus metrics of pools of memory: who holds how much, loads, evictions, and what was learnt of backends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from eyas.base.histogram import Histogram
from eyas.router.manager.happenings import Happening
from eyas.router.memory.pressure import LEVELS
from eyas.router.memory.status import PoolStatus
from eyas.router.operation.families import Family, Labels, counter, gauge, histogram, zeros

__all__ = ["MemoryMetrics"]

BACK_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0)  # 60 s are waited for at most


class MemoryMetrics:
    """Counts what happens to backends in pools; all else is read from the status of the pools at each scrape."""

    def __init__(self, pools: Callable[[], Sequence[PoolStatus]]) -> None:
        self._pools = pools
        self._levels = {pool.name: pool.level for pool in pools()}
        self._emergencies = zeros((name,) for name in self._levels)
        names = [one.backend for pool in pools() for one in pool.members]
        self._loads = zeros((name,) for name in names)
        self._refused = zeros((name,) for name in names)
        self._unloads = zeros((name,) for name in names)
        self._late = zeros((name,) for name in names)
        self._back = {name: Histogram(BACK_S) for name in names}

    def happened(self, event: Happening) -> None:
        """Count a load, an eviction, or how long memory took to come back."""
        name = event.backend or ""
        match event.memory:
            case "load":
                self._loads[name,] += 1
            case "refused":
                self._refused[name,] += 1
            case "unload":
                self._unloads[name,] += 1
            case "late":
                self._late[name,] += 1
            case "unloaded" if event.seconds is not None:
                self._back[name].add(event.seconds)
            case "pressure":
                self._count_emergencies()

    def _count_emergencies(self) -> None:
        """Count pools that have come into an emergency, which may be over before the next scrape."""
        for pool in self._pools():
            if pool.level == "emergency" != self._levels[pool.name]:
                self._emergencies[pool.name,] += 1
            self._levels[pool.name] = pool.level

    def families(self) -> Iterable[Family]:
        """Yield all families as the pools stand now."""
        pools = self._pools()
        yield from _pool_families(pools)
        yield counter("memory_emergencies", "Times that a pool came into an emergency.", ["pool"], self._emergencies)
        members = [one for pool in pools for one in pool.members]
        footprints: dict[Labels, float] = {
            (one.backend, kind): size
            for one in members
            for kind, size in (("declared", one.declared), ("steady", one.steady), ("peak", one.peak))
        }
        yield gauge("footprint_bytes", "What a backend declares that it takes; what it is expected to take when it is "
                    "ready, and at most while it loads.", ["backend", "kind"], footprints)  # fmt: skip
        yield counter("loads", "Loads of a backend into its pool that were begun.", ["backend"], self._loads)
        yield counter("loads_refused", "Loads of a backend for which there was no room.", ["backend"], self._refused)
        yield counter("unloads", "Times that a backend was unloaded, for others, by pressure or by a person.",
                      ["backend"], self._unloads)  # fmt: skip
        yield counter("memory_late", "Times that the memory of a backend that was unloaded did not all come back.",
                      ["backend"], self._late)  # fmt: skip
        yield histogram("memory_back_seconds", "Time from the end of a backend's processes until its memory is back.",
                        "backend", self._back)  # fmt: skip


def _pool_families(pools: Sequence[PoolStatus]) -> Iterable[Family]:
    """Yield how pools stand. Of one that was never measured there are no sizes, and its age is infinite."""
    measured = [pool for pool in pools if pool.total is not None]
    yield gauge("memory_total_bytes", "Memory of a pool.", ["pool"],
                {(pool.name,): pool.total or 0 for pool in measured})  # fmt: skip
    yield gauge("memory_bytes", "Memory of a pool that a backend holds, or others do.", ["pool", "owner"],
                {(pool.name, owner): size for pool in measured for owner, size in _owners(pool)})  # fmt: skip
    yield gauge("memory_pressure", "1 for the level of pressure on a pool.", ["pool", "level"],
                {(pool.name, level): pool.level == level for pool in pools for level in LEVELS})  # fmt: skip
    yield gauge("memory_stall_percent", "Share of the last 10 s in which some tasks, or all, stalled for memory.",
                ["pool", "kind"], {(pool.name, kind): value for pool in measured
                                   for kind, value in (("some", pool.some), ("full", pool.full))})  # fmt: skip
    yield gauge("memory_age_seconds", "Age of a pool's figures.", ["pool"],
                {(pool.name,): math.inf if pool.age_s is None else pool.age_s for pool in pools})  # fmt: skip


def _owners(pool: PoolStatus) -> Iterable[tuple[str, int]]:
    yield "others", pool.others or 0
    for one in pool.members:
        yield one.backend, one.used
