"""Rehearses the loads of a pool, without doing any: what would be unloaded for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from eyas.router.memory.events import Fails, Looked, Ordered, Reading, Stood, Unload, Usage, Waits
from eyas.router.memory.member import Footprint
from eyas.router.memory.policy import PoolPolicy
from eyas.router.settings.schema import BackendSettings, MemorySettings

__all__ = ["Turn", "rehearse"]

LATER_S = 1000.0  # those that are loaded have answered, and may go


class Turn(Struct, frozen=True, kw_only=True):
    """One load: beside whom, who goes for it, or why it cannot be."""

    backend: str
    beside: tuple[str, ...]
    unloads: tuple[str, ...] = ()
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return self.refused
        return f"unloads {', '.join(self.unloads)}" if self.unloads else "fits"


def rehearse(
    backends: Sequence[BackendSettings],
    footprints: Mapping[str, Footprint],
    settings: MemorySettings,
    total: int,
    system: int,
) -> list[Turn]:
    """Return what a load of each backend does when as many of the others are loaded as fit, in the file's order.

    `total` and `system` (what others take) are bytes. Pinned backends are loaded first and always.
    """
    limit = int(settings.critical * total) - system
    claims = {name: settings.claim(one.steady, one.peak, total).num_bytes for name, one in footprints.items()}
    return [_turn(one, backends, footprints, claims, settings, total, limit, system) for one in backends]


def _turn(
    backend: BackendSettings,
    backends: Sequence[BackendSettings],
    footprints: Mapping[str, Footprint],
    claims: Mapping[str, int],
    settings: MemorySettings,
    total: int,
    limit: int,
    system: int,
) -> Turn:
    loaded = _loaded_beside(backend, backends, footprints, claims, limit)
    policy = PoolPolicy(backends, footprints, settings, 0.0, system=system)
    for name in loaded:
        policy.decide(Stood(name, "ready"), 0.0)
    owners = {name: footprints[name].steady for name in loaded}
    reading = Reading(total, system + sum(owners.values()), owners)
    usage = {one.name: Usage(0, 0) for one in backends}
    effects = policy.decide(Looked(waiting={}, usage=usage, reading=reading), LATER_S)
    effects += policy.decide(Ordered(backend.name, "load"), LATER_S)
    reasons = [one.reason for one in effects if isinstance(one, Fails | Waits) and one.backend == backend.name]
    unloads = tuple(one.backend for one in effects if isinstance(one, Unload))
    return Turn(
        backend=backend.name,
        beside=loaded,
        unloads=unloads,
        refused=reasons[0] if reasons and not unloads else "",
    )


def _loaded_beside(
    backend: BackendSettings,
    backends: Sequence[BackendSettings],
    footprints: Mapping[str, Footprint],
    claims: Mapping[str, int],
    limit: int,
) -> tuple[str, ...]:
    """Return who is loaded when a backend is wanted: pinned ones, then who fits."""
    found: list[BackendSettings] = []
    room = limit
    for one in sorted(backends, key=lambda other: not other.is_pinned):
        is_rival = one.is_exclusive and any(other.is_exclusive for other in found)
        if one is backend or is_rival or claims[one.name] > room:
            continue
        found.append(one)
        room -= footprints[one.name].steady
    return tuple(one.name for one in backends if one in found)
