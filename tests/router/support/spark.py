"""A Spark's pool for tests of metrics and the page: a large pinned model, a small one, a sidecar."""

from pathlib import Path

import msgspec

from eyas.router.memory.status import MemberStatus, PoolStatus
from eyas.router.settings.schema import BackendSettings, ModelSettings, RouterSettings, ServerSettings

__all__ = ["GIB", "spark_pool", "spark_settings", "unmeasured"]

GIB = 1 << 30
NAMES = ("large", "small", "eyes")
MEMBERS = {
    "large": {"steady": 61.2, "peak": 66.0, "declared": 62.0, "is_learnt": True, "is_exclusive": True},
    "small": {"steady": 14.1, "peak": 15.0, "declared": 12.5, "is_learnt": True},
    "eyes": {"steady": 6.0, "peak": 7.0, "declared": 6.0, "is_learnt": False, "priority": "low"},
}


def spark_settings(api_key: str | None = None) -> RouterSettings:
    """Three backends in one pool, each with a model of its name, and one elsewhere."""
    planned = [BackendSettings(name=name, plan=Path(f"{name}.yaml"), pool="spark", concurrency=4) for name in NAMES]
    backends = (*planned, BackendSettings(name="cloud", url="http://127.0.0.1:9"))
    return RouterSettings(
        backends=backends,
        models=tuple(ModelSettings(name=f"model-{one.name}", backends=(one.name,)) for one in backends),
        routes=(),
        server=ServerSettings(api_key=api_key),
    )


def spark_pool(others: float = 12.0, level: str = "normal", pinned: str = "large", **used: float) -> PoolStatus:
    """How the pool stands when these backends hold so many GiB."""
    members = []
    for name, more in MEMBERS.items():
        sizes = {key: int(more[key] * GIB) for key in ("steady", "peak", "declared")}
        held = int(used.get(name, 0) * GIB)
        state = "ready" if held else "idle"
        flags = {"priority": "normal", "is_exclusive": False, "is_pinned": name == pinned}
        members.append(MemberStatus(**flags | more | sizes | {"backend": name, "state": state, "used": held}))
    total = int(119.7 * GIB)
    all_used = int(others * GIB) + sum(one.used for one in members)
    return PoolStatus(
        name="spark", kind="unified", level=level, total=total, used=all_used, others=int(others * GIB), age_s=0,
        fault="", some=0.0, full=0.0, warning=0.7, critical=0.8, emergency=0.9, members=tuple(members),
    )  # fmt: skip


def unmeasured(pool: PoolStatus, fault: str) -> PoolStatus:
    """How it stands when nothing was measured yet."""
    return msgspec.structs.replace(pool, total=None, used=None, others=None, age_s=None, fault=fault)
