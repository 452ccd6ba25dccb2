"""Types of a router's configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from eyas.base.harmony.rendering import Effort
from eyas.base.serving.budgets import Budgets, Spans
from eyas.base.serving.engines import EngineName, Role
from eyas.base.units import readable

__all__ = [
    "CONCURRENCY",
    "ROUTES",
    "BackendSettings",
    "Claim",
    "GuardMode",
    "MemorySettings",
    "ModelSettings",
    "PoolKind",
    "PoolSettings",
    "Priority",
    "RouteName",
    "RouteSettings",
    "RouterSettings",
    "ServerSettings",
]

RouteName = Literal["MATH", "SIMPLE_CODE", "COMPLEX_CODE", "REASONING", "RESEARCH", "SELF_HANDLE"]
ROUTES: tuple[RouteName, ...] = ("MATH", "SIMPLE_CODE", "COMPLEX_CODE", "REASONING", "RESEARCH", "SELF_HANDLE")
GuardMode = Literal["off", "observe", "act"]
Priority = Literal["critical", "normal", "low"]
# unified: the machine's memory, which its GPU shares. gpu: the memory of one GPU. size: a part of the machine's memory,
# by what the processes of its backends take.
PoolKind = Literal["unified", "gpu", "size"]
CONCURRENCY = 8  # requests at once, where neither the file nor a plan says: above 10 to 15 a Spark ran out of memory


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendSettings:
    """A backend: a server at `url`, or a plan that is started here.

    `url` is without `/v1`. `key` is the API key itself, read from the variable that the file names, and stands in no
    text: neither in `repr` nor in a log, metric or page.
    """

    name: str
    url: str | None = None
    key: str | None = field(default=None, repr=False)
    plan: Path | None = None  # as `eyas plan --out` writes it
    role: Role = "text"
    engine: EngineName | None = None  # None: found out by asking it
    model: str | None = None  # the model's name there; None is the one that the server has
    concurrency: int = CONCURRENCY
    twin_of: str | None = None  # this backend has the same model without speculation
    budgets: Budgets = field(default_factory=Budgets)
    guard: GuardMode | None = None  # None: the router's
    pool: str | None = None  # whose memory it takes; None: it is started with the router, whatever it takes
    priority: Priority = "normal"  # lower ones are unloaded first
    is_exclusive: bool = False  # no other exclusive one is loaded in its pool beside it
    is_pinned: bool = False  # loaded with the router, and never unloaded for others
    steady_bytes: int = 0  # declared, by the file or the plan: when it is ready
    peak_bytes: int = 0  # declared: the most while it loads


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """A model as clients name it, and its backends, best first."""

    name: str
    backends: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RouteSettings:
    """Effort, `max_tokens` and perhaps another model, which a route sets where the client has not."""

    name: RouteName
    effort: Effort
    max_tokens: int = 2048
    model: str | None = None
    budgets: Spans = field(default_factory=dict)  # over those of whichever backend answers


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSettings:
    """Memory that backends share. Sizes are in bytes."""

    name: str
    kind: PoolKind
    gpu: int = 0  # its index, of the kind gpu
    size: int | None = None  # None: what the machine or the driver says
    system: int = 0  # that others take: the system, in what is expected before anything was measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Needs of a load: `num_bytes` below critical, for what stays or for what of its peak passes emergency."""

    steady: int
    peak: int
    num_bytes: int

    @property
    def takes(self) -> str:
        """Words for what it takes: of its sizes the one that decides."""
        if self.num_bytes > self.steady:
            return f"takes up to {readable(self.peak)} while it loads"
        return f"takes {readable(self.steady)}"

    def left(self, room: int) -> str:
        """Return what there is for it where `room` bytes are left below critical, to compare with `takes`."""
        more = self.peak - self.num_bytes if self.num_bytes > self.steady else 0
        return readable(max(0, room + more))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySettings:
    """Levels of pressure as shares of a pool, and limits of waiting in seconds."""

    warning: float = 0.7
    critical: float = 0.8
    emergency: float = 0.9
    drain_s: float = 30.0  # that the answers of a backend may take to end before it is unloaded
    wait_s: float = 600.0  # that requests wait for a backend which waits for memory

    def claim(self, steady: int, peak: int, total: int) -> Claim:
        """Return what a load needs of a pool of `total` bytes: only its peak may pass critical, up to emergency."""
        return Claim(
            steady=steady, peak=peak, num_bytes=max(steady, peak - int((self.emergency - self.critical) * total))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Address of the router and whom it answers, as `eyas serve` has it (`ServeConfig` in base/settings/config.py)."""

    host: str = "127.0.0.1"
    port: int = 8100
    api_key: str | None = field(default=None, repr=False)
    cors: str | None = None
    allowed_hosts: str | None = None
    max_body: int = 16 << 20
    drain_s: float = 30.0
    log_format: Literal["text", "json"] = "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterSettings:
    """A whole file. The first model is the resident one: routes without a model mean it."""

    backends: tuple[BackendSettings, ...]
    models: tuple[ModelSettings, ...]
    routes: tuple[RouteSettings, ...]
    decide: Literal["classifier", "model"] = "classifier"
    guard: GuardMode = "observe"
    server: ServerSettings = field(default_factory=ServerSettings)
    max_queue: int = 256  # requests that wait, over all models
    budgets: Budgets = field(default_factory=Budgets)
    pools: tuple[PoolSettings, ...] = ()
    memory: MemorySettings = field(default_factory=MemorySettings)

    def backend(self, name: str) -> BackendSettings:
        """Return the settings of a backend. Raises StopIteration."""
        return next(one for one in self.backends if one.name == name)

    def guard_of(self, backend: str) -> GuardMode:
        """Return the mode of the guard for a backend."""
        return self.backend(backend).guard or self.guard
