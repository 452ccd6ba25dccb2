"""A file's memory at rest: what stays loaded in each pool, whether that is below critical, and what fits beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eyas.base.settings.values import Problems
from eyas.base.units import readable
from eyas.recipes.plan import Plan
from eyas.router.settings.schema import BackendSettings, MemorySettings, PoolSettings, RouterSettings

__all__ = ["AtRest", "at_rest", "check_memory"]

SIDECARS = ("vision", "embeddings")
OTHERS = "others"


@dataclass(frozen=True, kw_only=True, slots=True)
class AtRest:
    """A pool when nothing is asked of it: its size (None: known to its driver only), and bytes by owner."""

    pool: PoolSettings
    total: int | None
    limit: int  # below which it is to stay: where pressure is critical
    rows: tuple[tuple[str, int], ...]

    @property
    def used(self) -> int:
        return sum(num_bytes for _, num_bytes in self.rows)

    def __str__(self) -> str:
        owners = " + ".join(f"{owner} {readable(num_bytes)}" for owner, num_bytes in self.rows)
        return f"{owners or 'nothing'} = {readable(self.used)}"


def at_rest(settings: RouterSettings, plans: Mapping[str, Plan]) -> list[AtRest]:
    """Return each pool at rest: the system, pinned backends, and sidecars, which are small and stay."""
    return [_at_rest(pool, settings, plans) for pool in settings.pools]


def _at_rest(pool: PoolSettings, settings: RouterSettings, plans: Mapping[str, Plan]) -> AtRest:
    members = _members(pool, settings)
    total, system = _capacity(pool, members, plans)
    rows = [("the system", system)] if system else []
    rows += [(one.name, one.steady_bytes) for one in members if _stays(one)]
    limit = int((total or 0) * settings.memory.critical)
    return AtRest(pool=pool, total=total, limit=limit, rows=tuple(rows))


def _members(pool: PoolSettings, settings: RouterSettings) -> list[BackendSettings]:
    return [one for one in settings.backends if one.pool == pool.name]


def _stays(backend: BackendSettings) -> bool:
    is_sidecar = backend.role in SIDECARS and not backend.is_exclusive
    return backend.is_pinned or is_sidecar or backend.plan is None


def _capacity(pool: PoolSettings, members: list[BackendSettings], plans: Mapping[str, Plan]) -> tuple[int | None, int]:
    """Return a pool's size and what its system takes, as the file says, else as its plans' box has them."""
    boxes = [plans[one.name].box for one in members if one.name in plans]
    if pool.kind == "size" or not boxes:
        return pool.size, pool.system
    hardware = boxes[0].hardware
    reserve = hardware.os_reserve_bytes if hardware.unified else 0
    return pool.size or hardware.usable_bytes, pool.system or reserve


def check_memory(settings: RouterSettings, plans: Mapping[str, Plan], problems: Problems) -> None:
    """Add what is wrong with pools and the backends in them."""
    for backend in settings.backends:
        _check_backend(backend, plans.get(backend.name), problems)
    for rest in at_rest(settings, plans):
        _check_pool(rest, _members(rest.pool, settings), settings.memory, problems)


def _check_backend(backend: BackendSettings, plan: Plan | None, problems: Problems) -> None:
    where = f"backends.{backend.name}"
    if backend.name == OTHERS:
        problems.add(where, "is what figures of memory call all that no backend holds; give it another name")
    if backend.pool is None:
        if backend.is_exclusive or backend.is_pinned:
            what = "exclusive" if backend.is_exclusive else "pinned"
            problems.add(f"{where}.{what}", "is said of a backend in no pool; name one: pool: NAME")
        return
    if backend.plan is None and (backend.is_exclusive or backend.is_pinned):
        problems.add(where, "has a url, so it is neither loaded nor unloaded here; only its memory counts in a pool")
    if not backend.steady_bytes and (plan is not None or backend.plan is None):
        problems.add(where, f"is in the pool {backend.pool} and wants memory: what it takes, such as memory: 6GiB")
    if plan is not None and any(node.ssh is not None for node in plan.choice.nodes):
        problems.add(where, f"runs on another machine, whose memory is not that of the pool {backend.pool}")


def _check_pool(rest: AtRest, members: list[BackendSettings], levels: MemorySettings, problems: Problems) -> None:
    where = f"pools.{rest.pool.name}"
    if not members:
        problems.add(where, "has no backend; a backend with a plan names its pool")
    exclusive = [one.name for one in members if one.is_pinned and one.is_exclusive]
    if len(exclusive) > 1:
        problems.add(where, f"has two backends that are pinned and exclusive: {exclusive[0]} and {exclusive[1]}")
    if rest.total is None:
        return
    percent = f"{rest.limit / rest.total:.0%} of {readable(rest.total)}"
    if rest.used >= rest.limit:
        problems.add(where, f"is above critical at rest ({percent} = {readable(rest.limit)}): {rest}")
        return
    for one in members:
        left = rest.limit - sum(num for owner, num in rest.rows if owner != one.name and not _may_go(owner, members))
        claim = levels.claim(one.steady_bytes, one.peak_bytes, rest.total)
        if claim.num_bytes > left:
            text = f"can never be loaded: it {claim.takes}, and at most {claim.left(left)} is left for it"
            problems.add(f"backends.{one.name}", text)


def _may_go(owner: str, members: list[BackendSettings]) -> bool:
    return any(one.name == owner and not one.is_pinned and one.plan is not None for one in members)
