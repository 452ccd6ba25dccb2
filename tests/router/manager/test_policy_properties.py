"""What must hold whatever comes, in any order: places, breakers, one end for each, nobody left waiting, replays."""

from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.support.policy_runs import OUT, READY, PolicyRun, backend, router

from eyas.base.serving.budgets import Budgets
from eyas.base.serving.failures import FAILURES
from eyas.router.manager.condition import Condition
from eyas.router.manager.events import Event, Send
from eyas.router.manager.happenings import Happening
from eyas.router.manager.policy import Policy

LOADING = Condition(state="loading", eta_s=20.0)
FILES = [
    router(backend("a", concurrency=1), max_queue=6),
    router(backend("a", concurrency=2), backend("b", concurrency=1, budgets=Budgets(queue_s=30.0)), max_queue=8),
    router(
        *(backend("a", concurrency=3), backend("b", concurrency=2), backend("t", concurrency=1, twin_of="a")),
        models={"m": ("a", "t", "b"), "n": ("b",), "o": ("a",)},
    ),
]


class Checked(PolicyRun):
    """A run that checks after every event what must hold; its own breakers are made of the happenings."""

    def __init__(self, file):
        self.opened = {}  # backend -> when
        self.was_reloaded = set()
        self.probes = {}  # backend -> visit
        self.wanted = {}  # visit -> Wanted
        super().__init__(file)

    def decide(self, event):
        before = dict(self.at)
        effects = super().decide(event)
        self._check_breakers(effects)
        for effect in effects:
            if isinstance(effect, Send):
                assert effect.visit not in before, "it was at another backend"
        self._check()
        return effects

    def _check_breakers(self, effects):
        for effect in effects:
            if isinstance(effect, Send):
                if effect.backend in self.opened:
                    assert effect.is_probe
                    reloaded = effect.backend in self.was_reloaded
                    assert reloaded or self.now >= self.opened.pop(effect.backend) + 60.0 - 1e-6
                    self.opened.pop(effect.backend, None)
                    self.probes[effect.backend] = effect.visit
                else:
                    prober = self.probes.get(effect.backend)
                    assert effect.is_probe == (prober is not None)
                    assert self.at.get(prober) != effect.backend or prober == effect.visit, "a probe is alone"
                    if prober is not None:
                        self.probes[effect.backend] = effect.visit
            elif isinstance(effect, Happening) and effect.kind == "breaker":
                if effect.breaker == "open":
                    self.opened[effect.backend] = self.now
                    self.probes.pop(effect.backend, None)
                    self.was_reloaded.discard(effect.backend)
                elif effect.breaker == "closed":
                    self.probes.pop(effect.backend)

    def _check(self):
        snapshot = self.snapshot()
        for one in self.settings.backends:
            here = [visit for visit, name in self.at.items() if name == one.name]
            assert len(here) == snapshot.backends[one.name].in_flight <= one.concurrency
        positions = self.policy.positions()
        waiting = set(range(1, self.num_visits + 1)) - set(self.at) - set(self.ended)
        assert set(positions) == waiting and sum(snapshot.queued.values()) == len(waiting)
        assert len(waiting) <= self.settings.max_queue + sum(one.concurrency for one in self.settings.backends)
        assert all(count == 1 for count in self.ended.values())
        assert all(len(names) == len(set(names)) for names in self.sent.values()), "each backend once"
        for visit in waiting:
            self._check_wait(visit, snapshot)

    def _check_wait(self, visit, snapshot):
        """A request waits only for what it does not find; the time-outs are the business of `pass_time`."""
        wanted = self.wanted.get(visit)
        if wanted is None or wanted["sticky"]:
            return
        states = []
        for name in self.backends_of[wanted["model"]]:
            one = snapshot.backends[name]
            if name not in self.sent[visit] and one.breaker == "closed":
                assert one.condition.state != "ready" or one.in_flight == one.concurrency, "it could go there"
                states.append(one.condition.state)
        if states and set(states) == {"loading"} and len(states) == len(self.backends_of[wanted["model"]]):
            assert self.waits(visit).state == "loading"

    def come(self, **fields):
        self.wanted[self.num_visits + 1] = fields
        return self.arrive(**fields)

    def change(self, name, condition):
        before = self.snapshot().backends[name].condition.state
        if before in ("loading", "unknown") and condition.state == "ready":
            self.was_reloaded.add(name)
        self.report(name, condition)


STEP = st.one_of(
    st.tuples(
        st.just("come"), st.sampled_from("mno"), st.sampled_from("xyz"), st.sampled_from([None, None, "s1", "s2"])
    ),
    st.tuples(st.sampled_from(["done", "done", "leave", "show", "full"]), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.integers(0, 9), st.sampled_from(FAILURES)),
    st.tuples(st.just("fail in a row"), st.integers(1, 8)),
    st.tuples(st.just("report"), st.sampled_from("abt"), st.sampled_from([READY, READY, OUT, LOADING])),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 5.0, 11.0, 61.0, 130.0])),
    st.tuples(st.just("leave queue"), st.integers(0, 9)),
)


FAILING = st.one_of(  # mostly: breakers open, are probed, open again
    st.tuples(st.just("fail in a row"), st.integers(3, 6)),
    st.tuples(st.just("come"), st.just("m"), st.sampled_from("xyz"), st.none()),
    st.tuples(st.sampled_from(["done", "leave", "full"]), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.integers(0, 9), st.sampled_from(["broken", "one_symbol"])),
    st.tuples(st.just("pass"), st.sampled_from([20.0, 35.0, 60.0])),
    st.tuples(st.just("report"), st.just("a"), st.sampled_from([READY, LOADING])),
)


def play(run, steps):
    """Do what `steps` say as far as it can be done."""
    for what, *rest in steps:
        if what == "come":
            model, client, sticky = rest
            run.come(model=model if model in run.backends_of else "m", client=client, sticky=sticky)
        elif what == "fail in a row":
            for _ in range(rest[0]):
                visit = run.come(model="m", client="w", sticky=None)
                if visit in run.at:
                    fail(run, visit, "broken")
        elif what == "pass":
            run.pass_time(rest[0])
        elif what == "report":
            name, condition = rest
            if name in run.policy.backends:
                run.change(name, condition)
        elif what == "leave queue":
            if positions := sorted(run.policy.positions()):
                run.leave(positions[rest[0] % len(positions)])
        elif run.at:
            visit = sorted(run.at)[rest[0] % len(run.at)]
            if what == "fail":
                fail(run, visit, rest[1])
            elif what == "full":
                full(run, visit)
            else:
                getattr(run, what)(visit)


def fail(run, visit, kind):
    if visit in run.shown:
        run.ended[visit] += 1
    run.fail(visit, kind)


def full(run, visit):
    if visit not in run.shown:
        run.full(visit)


class Shown(Checked):
    def __init__(self, file):
        self.shown = set()
        super().__init__(file)

    def show(self, visit):
        self.shown.add(visit)
        super().show(visit)


@given(st.sampled_from(FILES), st.one_of(st.lists(STEP, max_size=60), st.lists(FAILING, max_size=40)))
@settings(max_examples=60)
def test_what_always_holds(file, steps):
    run = Shown(file)
    play(run, steps)
    sent = {visit: list(names) for visit, names in run.sent.items()}
    assert all(run.sent[visit] == sent[visit] for visit in run.shown), "no other backend after the first content"

    for name in run.policy.backends:
        run.change(name, READY)
    for _ in range(run.num_visits):  # as long as each answer takes a second, all who wait get theirs or a reason
        run.pass_time(1.0)
        for visit in list(run.at):
            if visit in run.at:
                run.done(visit)
    assert set(run.ended) == set(range(1, run.num_visits + 1)) and not run.at
    assert all(one.in_flight == 0 for one in run.snapshot().backends.values())

    log = msgspec.json.encode([event for event, _ in run.log])
    again = Policy(file, 1000.0)
    effects = []
    for event, (_, now) in zip(msgspec.json.decode(log, type=list[Event]), run.log, strict=True):
        effects += again.decide(event, now)
    assert effects == run.effects, "the log replays"


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=40), st.integers(1, 3))
def test_no_client_waits_for_more_than_a_turn_of_each_other(clients, concurrency):
    run = PolicyRun(router(backend("a", concurrency=concurrency)))
    visits = {run.arrive(client=client): client for client in clients}
    order = list(run.sent)
    while run.at:
        run.done(next(iter(run.at)))
        order = list(dict.fromkeys([*order, *run.at]))
    assert len(order) == len(clients)
    for client in set(clients):
        own = [visit for visit in order if visits[visit] == client]
        assert own == sorted(own)
        later = [index for index, visit in enumerate(order) if visits[visit] == client and index >= concurrency]
        gaps = [after - before for before, after in pairwise(later)]
        assert max(gaps, default=0) <= len(set(clients))
