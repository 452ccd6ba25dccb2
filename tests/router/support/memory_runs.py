"""A box without a box: backends that take memory and time, requests that come and go, and a pool's policy over them."""

from dataclasses import dataclass, field

from eyas.router.memory.events import Fails, Load, Looked, Noted, Ordered, Reading, Stood, Unload, Usage
from eyas.router.memory.member import Footprint
from eyas.router.memory.policy import PoolPolicy
from eyas.router.settings.schema import BackendSettings, MemorySettings

__all__ = ["GIB", "Box", "Engine", "Request"]

GIB = 1 << 30
TICK_S = 0.25


@dataclass
class Engine:
    """A backend as it truly is. It declares `declared` times what it takes when it is ready."""

    name: str
    steady: int
    peak: float = 1.1  # times steady
    declared: float = 1.0
    load_s: float = 10.0
    stop_s: float = 1.0
    back_s: float = 0.5  # until its memory is back, once its processes have ended
    priority: str = "normal"
    is_exclusive: bool = False
    is_pinned: bool = False
    started: float | None = None  # its processes
    state: str = "idle"
    until: float = 0.0  # of what it is doing
    drain_until: float = 0.0
    ended: float | None = None

    @property
    def settings(self):
        steady = int(self.steady * self.declared)
        return BackendSettings(
            name=self.name,
            pool="box",
            priority=self.priority,
            is_exclusive=self.is_exclusive,
            is_pinned=self.is_pinned,
            steady_bytes=steady,
            peak_bytes=int(steady * self.peak),
        )

    def taken(self, now):
        """Bytes: growing to the peak while it loads, then steady, and a moment more after its end."""
        if self.state == "loading":
            share = (now - self.started) / self.load_s
            return int(self.steady * self.peak * min(1.0, share / 0.9))
        if self.state in ("ready", "unloading"):
            return self.steady
        return self.steady if self.ended is not None and now < self.ended + self.back_s else 0


@dataclass
class Request:
    """A request for one backend, which takes `seconds` there."""

    backend: str
    at: float
    seconds: float = 1.0
    sent: float | None = None
    done: float | None = None
    refused: float | None = None

    @property
    def waits(self):
        return self.sent is None and self.refused is None


@dataclass
class Box:
    """A pool, its engines, and a clock. `log` has the events with their times, `effects` what followed."""

    engines: list
    total: int = 100 * GIB
    foreign: int = 0
    settings: MemorySettings = field(default_factory=MemorySettings)
    requests: list = field(default_factory=list)
    concurrency: int = 4

    def __post_init__(self):
        self.now = 1000.0
        self.by_name = {one.name: one for one in self.engines}
        self.log, self.effects, self.shares = [], [], []
        self.num_sent = dict.fromkeys(self.by_name, 0)
        self.fault = ""
        self.some = self.full = 0.0
        self.policy = self.new_policy()
        self.look()

    def new_policy(self):
        footprints = {
            one.name: Footprint(peak=one.settings.peak_bytes, steady=one.settings.steady_bytes) for one in self.engines
        }
        return PoolPolicy([one.settings for one in self.engines], footprints, self.settings, 1000.0)

    def running(self, name):
        return [one for one in self.requests if one.backend == name and one.sent is not None and one.done is None]

    def decide(self, event):
        self.log.append((event, self.now))
        effects = self.policy.decide(event, self.now)
        self.effects += [(self.now, effect) for effect in effects]
        for effect in effects:
            if isinstance(effect, Load):
                one = self.by_name[effect.backend]
                assert one.state == "idle"
                one.state, one.started, one.until = "loading", self.now, self.now + one.load_s
            elif isinstance(effect, Unload):
                one = self.by_name[effect.backend]
                assert one.state in ("loading", "ready") or (one.state == "unloading" and not effect.drain_s)
                one.state, one.until = "unloading", self.now + one.stop_s
                one.drain_until = self.now + effect.drain_s
            elif isinstance(effect, Fails):
                for request in self.requests:
                    if request.backend == effect.backend and request.waits and request.at <= self.now:
                        request.refused = self.now
        return effects

    def used(self):
        return self.foreign + sum(one.taken(self.now) for one in self.engines)

    def look(self):
        waiting = {}
        for request in self.requests:
            if request.waits and request.at <= self.now and self.by_name[request.backend].state != "ready":
                waiting[request.backend] = min(waiting.get(request.backend, request.at), request.at)
        usage = {name: Usage(len(self.running(name)), self.num_sent[name]) for name in self.by_name}
        owners = {one.name: one.taken(self.now) for one in self.engines}
        reading = None if self.fault else Reading(self.total, self.used(), owners, self.some, self.full)
        self.decide(Looked(waiting=waiting, usage=usage, reading=reading, fault=self.fault))

    def order(self, name, order):
        self.decide(Ordered(name, order))

    def step(self):
        """Let TICK_S pass: engines go on, requests are sent and end, and everything is looked at."""
        self.now += TICK_S
        for one in self.engines:
            if one.state == "loading" and self.now >= one.until:
                one.state = "ready"
                self.decide(Stood(one.name, "ready"))
            elif one.state == "unloading" and (not self.running(one.name) or self.now >= one.drain_until):
                one.until = min(one.until, self.now + one.stop_s)
                if self.now >= one.until:
                    for request in self.running(one.name):
                        request.done = self.now
                    one.state, one.ended = "idle", self.now
                    self.decide(Stood(one.name, "idle"))
        for request in sorted(self.requests, key=lambda one: one.at):
            if request.done is None and request.sent is not None and self.now >= request.sent + request.seconds:
                request.done = self.now
            is_up = request.at <= self.now and self.by_name[request.backend].state == "ready"
            if request.waits and is_up and len(self.running(request.backend)) < self.concurrency:
                request.sent = self.now
                self.num_sent[request.backend] += 1
        self.look()
        self.shares.append(self.used() / self.total)

    def run(self, seconds):
        for _ in range(round(seconds / TICK_S)):
            self.step()

    def settle(self, limit_s=3600.0):
        """Run until all requests have ended."""
        end = self.now + limit_s
        while any(one.done is None and one.refused is None for one in self.requests):
            assert self.now < end, [one for one in self.requests if one.done is None and one.refused is None]
            self.step()

    def states(self):
        return {one.name: one.state for one in self.engines}

    def noted(self, kind):
        return [effect for _, effect in self.effects if isinstance(effect, Noted) and effect.kind == kind]

    def loads(self):
        return [(at, effect.backend) for at, effect in self.effects if isinstance(effect, Load)]

    def unloads(self):
        return [(at, effect.backend) for at, effect in self.effects if isinstance(effect, Unload)]
