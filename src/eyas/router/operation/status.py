"""State of a router and its backends, as `GET /router/status`, the page and the metrics show it. No key is in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, get_args

from msgspec import Struct

import eyas
from eyas.base.serving.breaker import BreakerState
from eyas.router.manager.condition import Cause, ConditionState
from eyas.router.manager.happenings import BackendSnapshot, Snapshot
from eyas.router.memory.status import PoolStatus
from eyas.router.operation.hiding import Hide, hider, shown_url
from eyas.router.settings.schema import BackendSettings, RouterSettings

__all__ = [
    "BREAKERS",
    "ORDERS",
    "STATES",
    "BackendStatus",
    "Control",
    "ModelStatus",
    "Order",
    "RouterStatus",
    "StatusMaker",
]

BREAKERS: tuple[BreakerState, ...] = get_args(BreakerState)
STATES: tuple[ConditionState, ...] = get_args(ConditionState)
LOADABLE = ("idle", "loading", "unloading")


Order = Literal["load", "unload", "pin", "unpin"]
ORDERS: tuple[Order, ...] = get_args(Order)


class Control(Protocol):
    """Starts and stops backends: plans with their processes; of others it only decides whether they get requests."""

    def pools(self) -> tuple[PoolStatus, ...]:
        """Return how the pools of memory stand."""

    async def start(self, name: str) -> None:
        """Begin to start a backend; its condition tells the rest. Raises UserError."""

    async def stop(self, name: str) -> None:
        """Take a backend out, and end the processes of its plan. Raises UserError."""

    async def order(self, name: str, order: Order) -> None:
        """Load, unload, pin or unpin a backend of a pool. Raises UserError for one in none."""


class BackendStatus(Struct, frozen=True, kw_only=True):
    """State of a backend. `open_s` is the time until an open breaker lets a request in; times are in whole seconds."""

    name: str
    role: str
    url: str | None
    plan: str | None
    twin_of: str | None
    model: str | None  # the model's name there
    is_ours: bool
    state: ConditionState
    cause: Cause | None
    reason: str
    eta_s: int | None
    breaker: BreakerState
    open_s: int | None
    failures: int  # in a row
    in_flight: int
    concurrency: int
    pool: str | None

    @property
    def is_available(self) -> bool:
        """Whether requests are sent to it, or it is loaded from its pool for them."""
        if self.pool is not None and self.state in LOADABLE:
            return True
        return self.state == "ready" and (self.breaker != "open" or not self.open_s)


class ModelStatus(Struct, frozen=True, kw_only=True):
    """A model as clients name it."""

    name: str
    backends: tuple[str, ...]
    num_available: int
    queued: int


class RouteStatus(Struct, frozen=True, kw_only=True):
    name: str
    effort: str
    max_tokens: int
    model: str


class RouterStatus(Struct, frozen=True, kw_only=True):
    """State of a router. `can_control`: keys are set, so that backends may be started and stopped."""

    version: str
    models: tuple[ModelStatus, ...]
    backends: tuple[BackendStatus, ...]
    routes: tuple[RouteStatus, ...]
    decide: str
    guard: str
    pools: tuple[PoolStatus, ...]
    max_queue: int
    can_control: bool

    @property
    def is_ready(self) -> bool:
        """Whether a backend can answer for the resident model."""
        return self.models[0].num_available > 0


class StatusMaker:
    """Makes a status of a file's settings and the manager's snapshot."""

    def __init__(
        self,
        settings: RouterSettings,
        snapshot: Callable[[], Snapshot],
        *,
        can_control: bool,
        pools: Callable[[], tuple[PoolStatus, ...]] = tuple,
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._can_control, self._pools = can_control, pools
        self._hide = hider(settings)

    def __call__(self) -> RouterStatus:
        settings, snapshot = self._settings, self._snapshot()
        backends = {one.name: _backend(one, snapshot.backends[one.name], self._hide) for one in settings.backends}
        resident = settings.models[0].name
        return RouterStatus(
            version=eyas.__version__,
            models=tuple(
                ModelStatus(
                    name=one.name,
                    backends=one.backends,
                    num_available=_num_available(one.backends, backends),
                    queued=snapshot.queued.get(one.name, 0),
                )
                for one in settings.models
            ),
            backends=tuple(backends.values()),
            routes=tuple(
                RouteStatus(name=one.name, effort=one.effort, max_tokens=one.max_tokens, model=one.model or resident)
                for one in settings.routes
            ),
            decide=settings.decide,
            guard=settings.guard,
            pools=self._pools(),
            max_queue=settings.max_queue,
            can_control=self._can_control,
        )


def _num_available(names: tuple[str, ...], backends: Mapping[str, BackendStatus]) -> int:
    return sum(backends[name].is_available for name in names)


def _backend(settings: BackendSettings, now: BackendSnapshot, hide: Hide) -> BackendStatus:
    condition = now.condition
    return BackendStatus(
        name=settings.name,
        role=settings.role,
        url=None if settings.url is None else shown_url(settings.url),
        plan=None if settings.plan is None else settings.plan.name,
        twin_of=settings.twin_of,
        model=condition.model or settings.model,
        is_ours=condition.is_ours,
        state=condition.state,
        cause=condition.cause,
        reason=hide(condition.reason),
        eta_s=_whole(condition.eta_s),
        breaker=now.breaker,
        open_s=_whole(now.open_s),
        failures=now.failures,
        in_flight=now.in_flight,
        concurrency=now.concurrency,
        pool=settings.pool if settings.plan is not None else None,
    )


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(seconds))
