"""Runs the manager's policy without a loop: a clock, the log of events, and where every visit is."""

from collections import defaultdict

from eyas.router.manager.condition import Condition
from eyas.router.manager.events import (
    Arrived,
    Closed,
    Done,
    Failed,
    Full,
    Left,
    Refuse,
    Reported,
    Send,
    Shown,
    TimePassed,
)
from eyas.router.manager.happenings import Happening
from eyas.router.manager.policy import Policy
from eyas.router.manager.visit import Wanted
from eyas.router.settings.schema import BackendSettings, ModelSettings, RouterSettings

READY = Condition(state="ready")
OUT = Condition(state="out", reason="it is another model", cause="another_model")


def backend(name, **fields):
    return BackendSettings(name=name, url=f"http://127.0.0.1/{name}", **fields)


def router(*backends, models=None, max_queue=256):
    """Settings with these backends, and one model `m` that has them all unless `models` says otherwise."""
    models = models or {"m": tuple(one.name for one in backends)}
    return RouterSettings(
        backends=backends,
        models=tuple(ModelSettings(name=name, backends=names) for name, names in models.items()),
        routes=(),
        max_queue=max_queue,
    )


class PolicyRun:
    """A policy with a clock. All backends are ready unless `is_ready` is off."""

    def __init__(self, settings, *, is_ready=True):
        self.settings = settings
        self.backends_of = {model.name: model.backends for model in settings.models}
        self.now = 1000.0
        self.policy = Policy(settings, self.now)
        self.log = []  # (event, time)
        self.effects = []
        self.sent = defaultdict(list)  # visit -> backends, one after the other
        self.at = {}  # visit -> the backend that it is at
        self.refused = {}  # visit -> Refuse
        self.ended = defaultdict(int)  # visit -> how often
        self.num_visits = 0
        if is_ready:
            for one in settings.backends:
                self.report(one.name, READY)

    def decide(self, event):
        self.log.append((event, self.now))
        effects = self.policy.decide(event, self.now)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Send):
                self.sent[effect.visit].append(effect.backend)
                self.at[effect.visit] = effect.backend
            elif isinstance(effect, Refuse):
                self.refused[effect.visit] = effect
                self.ended[effect.visit] += 1
        return effects

    def arrive(self, model="m", **fields):
        """A new visit, by number."""
        self.num_visits += 1
        self.decide(Arrived(self.num_visits, Wanted(model=model, **{"backends": self.backends_of[model], **fields})))
        return self.num_visits

    def arrivals(self, count, **fields):
        return [self.arrive(**fields) for _ in range(count)]

    def report(self, name, condition):
        self.decide(Reported(name, condition))

    def fail(self, visit, kind="refused", detail=""):
        self.at.pop(visit)
        self.decide(Failed(visit, kind, detail))

    def full(self, visit, retry_after_s=None):
        self.at.pop(visit)
        self.decide(Full(visit, retry_after_s))

    def show(self, visit):
        self.decide(Shown(visit))

    def done(self, visit):
        self.at.pop(visit)
        self.ended[visit] += 1
        self.decide(Done(visit))

    def leave(self, visit):
        self.at.pop(visit, None)
        self.ended[visit] += 1
        self.decide(Left(visit))

    def close(self):
        self.decide(Closed())

    def waits(self, visit):
        """Why a visit waits; None if it does not."""
        position = self.policy.positions().get(visit)
        return None if position is None else self.policy.waiting(visit, position, self.now)

    def pass_time(self, seconds):
        """Let time pass as the manager does: it wakes the policy when that wants to be woken."""
        until = self.now + seconds
        for _ in range(10_000):
            at = self.policy.wake_at()
            if at is None or at > until:
                self.now = until
                return
            self.now = max(self.now, at)
            self.decide(TimePassed())
        raise AssertionError("the policy wakes itself again and again")

    def happenings(self, kind):
        return [effect for effect in self.effects if isinstance(effect, Happening) and effect.kind == kind]

    def snapshot(self):
        return self.policy.snapshot(self.now)


def opened(run, name="a"):
    """Five requests of `name`'s model that it fails."""
    for _ in range(5):
        visit = run.arrive(backends=(name,))
        run.fail(visit, "broken")
    assert run.snapshot().backends[name].breaker == "open"
