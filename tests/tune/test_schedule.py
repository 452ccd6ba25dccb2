"""What is measured next: within the time, the promising arms first, and in the end as many pairs as a verdict wants."""

import random
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.tune.schedule import MIN_PAIRS, PLAN_WINDOWS, Arm, Belief, Cell, Contest, Done, Progress, leader, next_step

SHORT, LONG = Cell(128, 4), Cell(2048, 1)
NAMES = ("1", "2", "3", "4")


def contest(*, is_shared=True, priors=None, weights=None, start_s=8.0):
    weights = weights or {SHORT: 2.0, LONG: 1.0}
    return Contest(
        base="none",
        base_start_s=start_s,
        arms=tuple(
            Arm(
                name=name, start_s=start_s, prior={cell: (priors or {}).get(name, Belief(0.0, 0.3)) for cell in weights}
            )
            for name in NAMES
        ),
        weights=weights,
        is_shared=is_shared,
    )


class Bench:
    """Engines whose true speeds are known, a clock that only they move, and a log of all steps."""

    def __init__(self, one, truth, *, budget_s, noise=0.02, window_s=3.0, start_s=8.0, seed=0):
        self.contest, self.truth, self.noise, self.left_s = one, truth, noise, budget_s
        self.window_s, self.start_s, self.rng = window_s, start_s, random.Random(seed)
        self.up, self.steps, self.starts = set(), [], []
        self.speeds = {}  # (arm, cell, turn)

    def progress(self):
        ratios, base_turns = {}, {}
        for (name, cell, turn), speed in self.speeds.items():
            if name == self.contest.base:
                base_turns[cell] = base_turns.get(cell, 0) + 1
            elif (base := self.speeds.get((self.contest.base, cell, turn))) is not None:
                ratios.setdefault((name, cell), []).append(log(speed / base))
        window_s = dict.fromkeys(self.contest.weights, self.window_s)
        up = frozenset(self.up)
        return Progress(ratios=ratios, base_turns=base_turns, window_s=window_s, up=up, left_s=self.left_s)

    def run(self):
        while True:
            step = next_step(self.contest, self.progress())
            if isinstance(step, Done):
                return step
            self.steps.append(step)
            keep = {self.contest.base, *step.arms} if self.contest.is_shared else set(step.arms)
            self.up &= keep
            for name in step.arms:
                if name not in self.up:
                    self.up.add(name)
                    self.starts.append(name)
                    self.left_s -= self.start_s
                speed = self.truth.get((name, step.cell), self.truth.get(name, 1.0)) * exp(
                    self.rng.gauss(0, self.noise)
                )
                assert (name, step.cell, step.turn) not in self.speeds
                self.speeds[name, step.cell, step.turn] = speed
                self.left_s -= self.window_s
            assert self.left_s >= 0, "a step that did not fit was taken"


TRUTH = {"1": 1.1, "2": 1.3, "3": 1.25, "4": 0.8, ("3", LONG): 1.5}


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_best_of_each_cell_is_found_and_has_its_pairs(is_shared):
    bench = Bench(contest(is_shared=is_shared), TRUTH, budget_s=600)
    assert bench.run().reason == "one more pair promises nothing"
    progress = bench.progress()
    assert [leader(bench.contest, progress, cell) for cell in (SHORT, LONG)] == ["2", "3"]
    assert all(len(progress.ratios[name, cell]) >= MIN_PAIRS for name, cell in (("2", SHORT), ("3", LONG)))
    assert len(progress.ratios["4", SHORT]) < MIN_PAIRS  # far behind after its first pair
    assert bench.left_s > 150


@pytest.mark.parametrize(("is_shared", "budget_s"), [(True, 110), (False, 130)])
def test_a_short_budget_gives_the_main_cell_its_pairs(is_shared, budget_s):
    bench = Bench(contest(is_shared=is_shared), TRUTH, budget_s=budget_s, noise=0.01)
    assert bench.run().reason == "the time is over"
    best = leader(bench.contest, bench.progress(), SHORT)
    assert best in ("2", "3") and len(bench.progress().ratios[best, SHORT]) >= MIN_PAIRS


def test_what_the_model_promises_comes_first_and_what_it_rules_out_never():
    priors = {"1": Belief(0.0, 0.1), "2": Belief(0.0, 0.3), "3": Belief(0.4, 0.1), "4": Belief(-0.9, 0.1)}
    bench = Bench(contest(priors=priors), TRUTH, budget_s=600)
    bench.run()
    assert "4" not in bench.starts
    # an arm that leads by 0.4 with a deviation of 0.1 has less to tell than one that is open
    assert next(name for name in bench.starts if name != "none") == "2"


def test_an_engine_is_used_while_it_is_up():
    bench = Bench(contest(start_s=60.0), TRUTH, budget_s=2000, start_s=60.0)
    bench.run()
    first = next(index for index, step in enumerate(bench.steps) if step.arms[-1] != bench.steps[0].arms[-1])
    assert {step.cell for step in bench.steps[:first]} == {SHORT, LONG}
    assert len(bench.starts) <= 8


def test_a_base_that_must_make_room_is_measured_in_blocks():
    bench = Bench(contest(is_shared=False), TRUTH, budget_s=900)
    bench.run()
    assert all(len(step.arms) == 1 for step in bench.steps)
    assert [step.arms for step in bench.steps[:6]] == [("none",)] * 6  # three windows in each of two cells
    assert bench.starts.count("none") == 2


@pytest.mark.parametrize("budget_s", range(17, 60))
def test_a_short_budget_has_the_windows_of_the_base_that_a_plan_wants(budget_s):
    bench = Bench(contest(), TRUTH, budget_s=budget_s)
    assert bench.run() == Done("the time is over")
    assert bench.progress().base_turns[SHORT] >= PLAN_WINDOWS


@settings(deadline=None)
@given(
    speeds=st.lists(st.floats(0.5, 2.0), min_size=4, max_size=4),
    budget_s=st.floats(0, 400),
    noise=st.floats(0, 0.2),
    is_shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_ends_within_its_time(speeds, budget_s, noise, is_shared, seed):
    truth = dict(zip(NAMES, speeds, strict=True))
    bench = Bench(contest(is_shared=is_shared), truth, budget_s=budget_s, noise=noise, seed=seed)
    bench.run()
    turns = {(step.cell, step.turn, name) for step in bench.steps for name in step.arms}
    assert len(turns) == sum(len(step.arms) for step in bench.steps)


def test_without_arms_there_is_nothing_to_compare():
    one = Contest(base="none", base_start_s=1.0, arms=(), weights={SHORT: 1.0}, is_shared=True)
    assert Bench(one, {}, budget_s=100).run() == Done("one more pair promises nothing")
