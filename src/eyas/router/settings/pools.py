"""Reads the part of a router's file that is about memory: pools, levels of pressure, and what each backend takes."""

from __future__ import annotations

import reprlib
from typing import Any, get_args

from eyas.base.settings import values
from eyas.base.settings.config import int_from, one_of
from eyas.base.settings.values import Problems, Section
from eyas.recipes.estimate.footprint import footprint
from eyas.recipes.plan import Plan
from eyas.router.settings.schema import MemorySettings, PoolKind, PoolSettings, Priority

__all__ = ["memory_of", "read_pools", "read_pressure", "size"]

POOL = ("kind", "gpu", "size", "system")
PRESSURE = ("warning", "critical", "emergency", "drain", "wait")
MAX_S = 86400.0


def size(value: Any) -> int:
    """Read a size with its unit. Raises ValueError."""
    found = values.num_bytes(value)
    if found is None or found <= 0:
        raise ValueError(f"wants a size above 0 such as 90GiB or 512MiB, got {reprlib.repr(value)}")
    return found


def read_pools(top: Section, problems: Problems) -> tuple[PoolSettings, ...]:
    """Read the pools of a file."""
    return tuple(_pool(name, content, problems) for name, content in top.entries("pools"))


def _pool(name: str, content: Any, problems: Problems) -> PoolSettings:
    where = f"pools.{name}"
    try:
        values.name(name, "pool")
    except ValueError as error:
        problems.add(where, str(error))
    section = Section(content, where, POOL, problems)
    kind: PoolKind = section.read("kind", values.scalar(one_of(*get_args(PoolKind))), "unified")  # type: ignore[arg-type]
    found = PoolSettings(
        name=name,
        kind=kind,
        gpu=section.read("gpu", values.scalar(int_from(0, 63)), 0),
        size=section.read("size", size, None),
        system=section.read("system", size, 0),
    )
    if kind == "size" and found.size is None and "size" not in section:
        problems.add(where, "is of the kind size and wants one, such as size: 90GiB")
    if kind != "gpu" and "gpu" in section:
        problems.add(f"{where}.gpu", f"does not go with the kind {kind}")
    return found


def read_pressure(top: Section, problems: Problems) -> MemorySettings:
    """Read the levels of pressure, in percent, and the limits of waiting, in seconds."""
    usual = MemorySettings()
    section = Section(top.get("pressure"), "pressure", PRESSURE, problems)
    found = MemorySettings(
        warning=section.read("warning", _share, usual.warning),
        critical=section.read("critical", _share, usual.critical),
        emergency=section.read("emergency", _share, usual.emergency),
        drain_s=section.read("drain", _seconds, usual.drain_s),
        wait_s=section.read("wait", _seconds, usual.wait_s),
    )
    if not found.warning <= found.critical <= found.emergency:
        problems.add("pressure", "wants warning, critical and emergency in this order, none above the next")
    return found


def _share(value: Any) -> float:
    percent = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
    if not 1 <= percent <= 100:
        raise ValueError(f"wants percent from 1 to 100, got {reprlib.repr(value)}")
    return percent / 100


def _seconds(value: Any) -> float:
    seconds = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if not 0 <= seconds <= MAX_S:
        raise ValueError(f"wants seconds from 0 to {MAX_S:.0f}, got {reprlib.repr(value)}")
    return seconds


def memory_of(section: Section, plan: Plan | None, pools: tuple[PoolSettings, ...]) -> dict[str, Any]:
    """Return the fields of a backend that are about memory. With one pool, a plan is in it unless it names another.

    What a backend takes is declared by the file, else by its plan.
    """
    usual = pools[0].name if len(pools) == 1 and "plan" in section else None
    pool = section.read("pool", values.text, usual)
    if pool is not None and pool not in (names := [one.name for one in pools]):
        section.problems.unknown(section.place("pool"), "pool", pool, names)
    declared = None if plan is None else footprint(plan)
    steady = section.read("memory", size, 0 if declared is None else declared.steady_bytes)
    peak = section.read("peak", size, steady if declared is None else max(steady, declared.peak_bytes))
    if peak < steady:
        section.problems.add(section.place("peak"), "is less than memory: a backend takes its peak while it loads")
    return {
        "pool": pool,
        "priority": section.read("priority", values.scalar(one_of(*get_args(Priority))), "normal"),
        "is_exclusive": section.read("exclusive", values.true_or_false, False),
        "is_pinned": section.read("pinned", values.true_or_false, False),
        "steady_bytes": steady,
        "peak_bytes": peak,
    }
