"""Decides what to measure next within a budget of time. Pure: what was measured goes in, the next step comes out.

The rule is the knowledge gradient per second (Frazier, Powell and Dayanik, "A knowledge-gradient policy for sequential
information collection", SIAM J. Control Optim. 47, 2008). In a cell, which is a context and a number of conversations,
each arm has a belief: the logarithm of its speed over that of the base, the arm without drafts, normal with a mean and
a deviation, at first from the planner's model. One more pair of windows would move the mean by a known deviation s;
with d, the distance of the mean from the best of the others, the advice in that cell is then expected to become better
by

    s (phi(z) + z Phi(z)),  z = -d / s.

Measured is where that is most, times the weight of the cell, over the seconds it takes: two windows, and the start of
an engine that is not up. An arm that is far behind by the model or by its first pair is thus soon left alone, and the
time goes where two arms are close. Where no pair promises a thousandth any more, or the time for it would be missing,
the arms that lead get the pairs that a verdict wants, the cell with the greatest weight first. There the
base gets the windows that a plan wants before another arm is started, alone where no pair fits beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import erf, exp, pi, sqrt
from statistics import mean, variance
from typing import NamedTuple

from msgspec import Struct

__all__ = [
    "MIN_PAIRS",
    "PLAN_WINDOWS",
    "TURNS",
    "Arm",
    "Belief",
    "Cell",
    "Contest",
    "Done",
    "Progress",
    "Step",
    "leader",
    "next_step",
]

MIN_PAIRS = 5  # that a verdict wants
TURNS = 1000  # of one contest
PLAN_WINDOWS = 3  # of an arm: fewer have no interval, and a plan does not go by them
BLOCK = 3  # windows of the base in a row, where it has to make room for the other arms
WORTH = 1e-3  # expected gain of speed below which a pair is not measured
NOISE, NOISE_PAIRS = (
    0.05,
    4,
)  # deviation of a pair's logarithm before any was measured, and how many pairs it counts for
LEAST_NOISE = 0.01


class Cell(Struct, frozen=True, order=True):
    """A load: prompts of about `context` tokens, `concurrency` conversations at once."""

    context: int
    concurrency: int


class Belief(NamedTuple):
    """A normal belief about the logarithm of a ratio of speeds."""

    mean: float
    deviation: float


class Arm(Struct, frozen=True, kw_only=True):
    """A way to serve that is compared with the base. `prior` is the belief before anything was measured."""

    name: str
    start_s: float
    prior: dict[Cell, Belief]


class Contest(Struct, frozen=True, kw_only=True):
    """A base and the arms that are compared with it. `is_shared`: the base and one arm can be up at the same time.

    Turns of a contest count from `first_turn`, so that arms of several contests are paired within each of them.
    """

    base: str
    base_start_s: float
    arms: tuple[Arm, ...]
    weights: dict[Cell, float]
    is_shared: bool
    first_turn: int = 0


class Progress(Struct, frozen=True, kw_only=True):
    """State of a contest: `ratios` are logarithms, by arm and cell, in the order of turns; `base_turns` its windows.

    `window_s` is what a window takes, `up` are the arms whose engines run.
    """

    ratios: Mapping[tuple[str, Cell], Sequence[float]]
    base_turns: Mapping[Cell, int]
    window_s: Mapping[Cell, float]
    up: frozenset[str]
    left_s: float


class Step(NamedTuple):
    """Measure a window of each of `arms`, one after the other: they are a pair where there are two."""

    arms: tuple[str, ...]
    cell: Cell
    turn: int


class Done(NamedTuple):
    """Nothing is left to do, or no time for it."""

    reason: str


def next_step(contest: Contest, progress: Progress) -> Step | Done:
    """Return what to measure next; see the docstring of this module."""
    noise = _noise(progress)
    if (step := _base_block(contest, progress)) is not None:
        return step if _fits(contest, progress, step, 0.0) else Done("the time is over")
    main = max(contest.weights, key=lambda cell: contest.weights[cell])
    missing = max(PLAN_WINDOWS - progress.base_turns.get(main, 0), 0) if contest.is_shared else 0
    up = [arm.name for arm in contest.arms if arm.name in progress.up]
    if missing and up:
        step = _step(contest, progress, up[0], main)
        if _fits(contest, progress, step, (missing - 1) * progress.window_s[main]):
            return step
    gains = {
        (arm.name, cell): weight * _gain(contest, progress, arm, cell, noise)
        for cell, weight in contest.weights.items()
        for arm in contest.arms
    }
    owed = _owed(contest, progress, noise)
    reserve_s = max(_owed_s(contest, progress, owed[0]) if owed else 0.0, missing * progress.window_s[main])
    best: tuple[float, Step] | None = None
    for arm in contest.arms:
        worth = [cell for cell, weight in contest.weights.items() if gains[arm.name, cell] > WORTH * weight]
        if not worth:
            continue
        start_s = _start_s(contest, progress, arm.name)
        cell = max(worth, key=lambda one: gains[arm.name, one] / _pair_s(contest, progress, one))
        chosen = worth if start_s else [cell]
        seconds = start_s + sum(_pair_s(contest, progress, one) for one in chosen)
        rate = sum(gains[arm.name, one] for one in chosen) / seconds
        step = _step(contest, progress, arm.name, cell)
        if _fits(contest, progress, step, reserve_s) and (best is None or rate > best[0]):
            best = rate, step
    if best is not None:
        return best[1]
    for name, cell in owed:
        step = _step(contest, progress, name, cell)
        if _fits(contest, progress, step, max(missing - (cell == main), 0) * progress.window_s[main]):
            return step
    alone = Step((contest.base,), main, progress.base_turns.get(main, 0))
    if missing and _fits(contest, progress, alone, 0.0):
        return alone
    is_over = bool(owed) or any(gains[name, cell] > WORTH * contest.weights[cell] for name, cell in gains)
    return Done("the time is over" if is_over else "one more pair promises nothing")


def leader(contest: Contest, progress: Progress, cell: Cell) -> str:
    """Return the arm, or the base, that is believed to be the fastest in a cell."""
    noise = _noise(progress)
    means = {arm.name: _belief(progress, arm, cell, noise).mean for arm in contest.arms}
    return max((contest.base, *means), key=lambda name: means.get(name, 0.0))


def _base_block(contest: Contest, progress: Progress) -> Step | None:
    """Return the next window of a base that is up alone: it is not started again for every pair."""
    if contest.is_shared or (progress.up and contest.base not in progress.up):
        return None
    most = max(map(len, progress.ratios.values()), default=0)
    for cell in contest.weights:
        if progress.base_turns.get(cell, 0) < (BLOCK if most < BLOCK else MIN_PAIRS):
            return Step((contest.base,), cell, progress.base_turns.get(cell, 0))
    return None


def _owed(contest: Contest, progress: Progress, noise: float) -> list[tuple[str, Cell]]:
    """List the arms that lead among those with drafts, and have fewer pairs than a verdict wants."""
    owed = []
    for cell in sorted(contest.weights, key=lambda one: -contest.weights[one]):
        if not contest.arms:
            continue
        best = max(contest.arms, key=lambda arm: _belief(progress, arm, cell, noise).mean)
        if len(progress.ratios.get((best.name, cell), ())) < MIN_PAIRS:
            owed.append((best.name, cell))
    return owed


def _owed_s(contest: Contest, progress: Progress, owed: tuple[str, Cell]) -> float:
    """Return the seconds of the pairs that are owed; a base that is not up beside the arm has to come back for some."""
    name, cell = owed
    missing = MIN_PAIRS - len(progress.ratios.get(owed, ()))
    seconds = _start_s(contest, progress, name) + missing * _pair_s(contest, progress, cell)
    if not contest.is_shared and progress.base_turns.get(cell, 0) < MIN_PAIRS:
        again_s = next(arm.start_s for arm in contest.arms if arm.name == name)
        seconds += contest.base_start_s + again_s + (MIN_PAIRS - BLOCK) * sum(progress.window_s.values())
    return seconds


def _step(contest: Contest, progress: Progress, name: str, cell: Cell) -> Step:
    """Return the next pair of an arm, or, where the base has no window for it yet and cannot be up beside it, that."""
    base_turns = progress.base_turns.get(cell, 0)
    if contest.is_shared:
        return Step((contest.base, name), cell, base_turns)
    turn = len(progress.ratios.get((name, cell), ()))
    return Step((name,), cell, turn) if turn < base_turns else Step((contest.base,), cell, base_turns)


def _fits(contest: Contest, progress: Progress, step: Step, reserve_s: float) -> bool:
    seconds = sum(_start_s(contest, progress, name) + progress.window_s[step.cell] for name in step.arms)
    return seconds + reserve_s <= progress.left_s


def _start_s(contest: Contest, progress: Progress, name: str) -> float:
    if name in progress.up:
        return 0.0
    starts = {arm.name: arm.start_s for arm in contest.arms}
    return starts.get(name, contest.base_start_s)


def _pair_s(contest: Contest, progress: Progress, cell: Cell) -> float:
    return progress.window_s[cell] * (2 if contest.is_shared else 1)


def _gain(contest: Contest, progress: Progress, arm: Arm, cell: Cell, noise: float) -> float:
    """Return the knowledge gradient of one more pair: the expected gain of the best mean, in logarithms."""
    belief = _belief(progress, arm, cell, noise)
    others = [_belief(progress, other, cell, noise).mean for other in contest.arms if other.name != arm.name]
    distance = abs(belief.mean - max([0.0, *others]))
    moved = belief.deviation**2 / sqrt(belief.deviation**2 + noise**2)
    if moved == 0:
        return 0.0
    z = -distance / moved
    return moved * (exp(-z * z / 2) / sqrt(2 * pi) + z * (1 + erf(z / sqrt(2))) / 2)


def _belief(progress: Progress, arm: Arm, cell: Cell, noise: float) -> Belief:
    """Return the posterior of a normal prior and pairs with normal noise."""
    prior, seen = arm.prior[cell], progress.ratios.get((arm.name, cell), ())
    if not seen:
        return prior
    weight, weights = 1 / prior.deviation**2, len(seen) / noise**2
    return Belief((weight * prior.mean + weights * mean(seen)) / (weight + weights), (weight + weights) ** -0.5)


def _noise(progress: Progress) -> float:
    """Return the deviation of a pair's logarithm, pooled over all arms and cells that have several."""
    groups = [seen for seen in progress.ratios.values() if len(seen) > 1]
    freedoms = [len(seen) - 1 for seen in groups]
    total = NOISE_PAIRS * NOISE**2 + sum(n * variance(seen) for n, seen in zip(freedoms, groups, strict=True))
    return max(LEAST_NOISE, sqrt(total / (NOISE_PAIRS + sum(freedoms))))
