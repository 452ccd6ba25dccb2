"""Fits what engines lose against bytes over bandwidth to two thirds of the published figures.

`python -m tools.speed_fit` writes `recipes/data/speed_fit.yaml`. Every third distinct figure is held out and read by
nothing here; `speed_record.py` compares the model with it. A round's time is the sum of `calibration.Work` over losses;
the logarithm of each loss is a value of the kind of memory plus one of the engine on it. Both are drawn towards a prior
(ridge, i.e. normal priors), so that a loss without figures stays near its kind's, and residuals beyond a few sigmas
count less (soft L1). Widths come from leave-one-out residuals (as in jackknife+, Barber, Candes, Ramdas and
Tibshirani 2021): each figure is predicted by a fit and by figures without it, or without any of its engine and box.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean

import msgspec
import numpy as np
from msgspec import Struct
from scipy.optimize import least_squares
from tests.recipes.support.numbers import setup

from eyas.recipes.estimate.acceptance import expected_acceptance
from eyas.recipes.estimate.calibration import FIT, Centre, Fit, Widths, calibrations, hardware_kind
from eyas.recipes.estimate.published import MOST, SHORT, Figure, alike, figures, support
from eyas.recipes.estimate.speed import MIDDLE, work
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Choice

EACH, HELD_OUT = 3, 2  # of each three figures the last is held out
INSIDE = 0.8  # of leave-one-out residuals: what a range promises
NOISE = 0.12  # sigma of a figure's logarithm: builds, prompts and clocks differ
LOSSES = ("layer_us", "efficiency", "row_us", "draft_ms")
# Of each kind of memory: launch of 6 to 8 kernels a layer, share of the bandwidth that streaming reads reach, sampling
# and attention of a row, the launches of a draft step. Orders of magnitude from reading engines, not from the figures.
PRIOR = {
    "unified": (25, 0.80, 200, 1.5),
    "gddr": (40, 0.80, 50, 0.3),
    "hopper": (60, 0.65, 40, 0.3),
    "blackwell": (50, 0.75, 40, 0.3),
}
REDUCE = {"gpus": 8.0, "nodes": 50.0}  # us
KIND_SIGMA = (0.5, 0.2, 0.7, 0.5)
ENGINE_SIGMA = (1.0, 0.2, 1.4, 0.3)
REDUCE_SIGMA = 0.4


class Terms(Struct):
    """Figures as the fit sees them, an array each over the figures: what a round does, and how long it took."""

    name: np.ndarray  # of engine and kind, as an index
    link: np.ndarray
    layers: np.ndarray
    rows: np.ndarray
    drafts: np.ndarray
    reductions: np.ndarray
    reading_s: np.ndarray
    log_seconds: np.ndarray

    def __getitem__(self, which: np.ndarray) -> Terms:
        return Terms(*(getattr(self, field)[which] for field in self.__struct_fields__))


class Losses:
    """Losses by engine and kind of memory, as a vector of logarithms relative to the prior."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.kind_of = [list(PRIOR).index(name.rpartition("-")[2]) for name in names]
        self.sigma = np.array([*KIND_SIGMA * len(PRIOR), *ENGINE_SIGMA * len(names), *[REDUCE_SIGMA] * len(REDUCE)])

    def table(self, vector: np.ndarray) -> np.ndarray:
        """The losses of each name, [names, LOSSES]."""
        cut = len(LOSSES) * len(PRIOR)
        of_kind = np.array(list(PRIOR.values())) * np.exp(vector[:cut].reshape(-1, len(LOSSES)))
        of_engine = np.exp(vector[cut : -len(REDUCE)].reshape(-1, len(LOSSES)))
        table: np.ndarray = of_kind[self.kind_of] * of_engine
        return table

    def reduce_us(self, vector: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.array(list(REDUCE.values())) * np.exp(vector[-len(REDUCE) :])
        return found

    def parts(self, vector: np.ndarray, terms: Terms) -> np.ndarray:
        """The seconds of a round that each loss takes, [LOSSES and the all-reduces, figures]."""
        layer, efficiency, row, draft = self.table(vector)[terms.name].T
        reduced = terms.reductions * self.reduce_us(vector)[terms.link] * 1e-6
        spent = (terms.layers * layer * 1e-6, terms.reading_s / efficiency, terms.rows * row * 1e-6)
        return np.array([*spent, terms.drafts * draft * 1e-3, reduced])

    def log_seconds(self, vector: np.ndarray, terms: Terms) -> np.ndarray:
        """The logarithm of a round's seconds, [figures]."""
        seconds: np.ndarray = np.log(self.parts(vector, terms).sum(0))
        return seconds

    def fitted(self, terms: Terms, start: np.ndarray | None = None) -> np.ndarray:
        """Return the vector of the least loss; `start` shortens the way."""

        def residuals(vector: np.ndarray) -> np.ndarray:
            differs = (self.log_seconds(vector, terms) - terms.log_seconds) / NOISE
            robust = np.sign(differs) * np.sqrt(2 * (np.sqrt(1 + differs**2) - 1))  # soft L1 as a square
            return np.concatenate([robust, vector / self.sigma])

        def jacobian(vector: np.ndarray) -> np.ndarray:
            parts = self.parts(vector, terms)
            differs = (np.log(parts.sum(0)) - terms.log_seconds) / NOISE
            root = np.sqrt(1 + differs**2)
            slope = np.sqrt((1 + root) / 2) / root / NOISE
            shares = (parts / parts.sum(0) * np.array([1, -1, 1, 1, 1])[:, None] * slope).T
            return np.concatenate([self._spread(shares, terms), np.diag(1 / self.sigma)])

        begin = np.zeros(len(self.sigma)) if start is None else start
        found: np.ndarray = least_squares(residuals, begin, jacobian, method="lm", xtol=1e-8, ftol=1e-8).x
        return found

    def _spread(self, shares: np.ndarray, terms: Terms) -> np.ndarray:
        """Put the shares of losses, [figures, losses], into the columns of the vector."""
        num, rows = len(LOSSES), np.arange(len(shares))
        columns = np.zeros((len(shares), len(self.sigma)))
        kinds = np.array(self.kind_of)[terms.name]
        for loss in range(num):
            columns[rows, num * kinds + loss] = shares[:, loss]
            columns[rows, num * (len(PRIOR) + terms.name) + loss] = shares[:, loss]
        columns[rows, len(self.sigma) - len(REDUCE) + terms.link] = shares[:, num]
        return columns


def thirds() -> list[list[Figure]]:
    """Deal all distinct figures out in order, then leave out those set apart: such a mark moves no other figure."""
    apart = set_apart()
    numbered = figures(knowledge().measurements)
    return [[one for one in numbered[third::EACH] if one not in apart] for third in range(EACH)]


def every() -> list[Figure]:
    """The figures that a plan may be compared with."""
    return figures(one for one in knowledge().measurements if not one.set_apart)


def set_apart() -> list[Figure]:
    return figures(one for one in knowledge().measurements if one.set_apart)


def kept() -> list[Figure]:
    left_out = held_out()
    return [one for one in every() if one not in left_out]


def held_out() -> list[Figure]:
    return thirds()[HELD_OUT]


def choice_of(one: Figure) -> Choice:
    """Return the plan that a figure was measured with."""
    settings = {"context": max(one.context, SHORT), "concurrency": one.concurrency}
    choice, *_ = setup(one.hardware, one.engine, model=one.model, head=one.head, drafts=one.draft_tokens, **settings)
    return choice


def set_length(one: Figure) -> float | None:
    """Return the acceptance length where it was not the head's own."""
    return one.acceptance_length if one.is_acceptance_set else None


def expected_length(one: Figure) -> float:
    """Return the acceptance length that a plan expects, or what was set."""
    if not one.draft_tokens:
        return 1.0
    found = expected_acceptance(choice_of(one), knowledge().heads[one.head], one.draft_tokens)
    return set_length(one) or sqrt(found.low * found.high)


def terms_of(some: Sequence[Figure]) -> Terms:
    """Return the terms of figures, at the acceptance length that a source states, else at what is expected."""
    columns = zip(*(_row(one) for one in some), strict=True)
    return Terms(*(np.array(column) for column in columns))


def _row(one: Figure) -> tuple[float, ...]:
    known, box, choice = knowledge(), parse_box(one.hardware), choice_of(one)
    head = known.heads[one.head] if one.head else None
    done = work(choice, box, known.models[one.model], head, one.draft_tokens, one.context, MIDDLE)
    seconds = one.concurrency * (one.acceptance_length or expected_length(one)) / one.tokens_per_second
    name = names().index(f"{one.engine}-{hardware_kind(box.hardware)}")
    link = list(REDUCE).index(done.link)
    return (name, link, done.layers, done.rows, done.drafts, done.reductions, done.reading_s, log(seconds))


def names() -> list[str]:
    """Engines on kinds of memory that are fitted: those without a guess; what came before Hopper is as Hopper."""
    return [name for name, record in calibrations().items() if record.guess is None and not name.endswith("-ampere")]


class Fitted:
    """Losses fitted to figures, and the rates that a plan expects of the figures' settings."""

    def __init__(self, some: Sequence[Figure]) -> None:
        self.some = list(some)
        self.losses = Losses(names())
        self.terms = terms_of(some)
        self.vector = self.losses.fitted(self.terms)
        self.log_tokens = np.array([log(one.concurrency * expected_length(one)) for one in some])

    def without(self, left_out: Sequence[Figure]) -> dict[Figure, float]:
        """The rates expected of all settings by a fit without some of the figures."""
        which = np.array([one not in left_out for one in self.some])
        vector = self.losses.fitted(self.terms[which], self.vector)
        rates = np.exp(self.log_tokens - self.losses.log_seconds(vector, self.terms))
        return dict(zip(self.some, (float(rate) for rate in rates), strict=True))

    def residual(self, one: Figure, left_out: Sequence[Figure]) -> float:
        """The logarithm of a figure over what is expected of it without `left_out`, which it is one of."""
        rates = self.without(left_out)
        known = [other for other in self.some if other not in left_out]
        found = support(choice_of(one), parse_box(one.hardware), known, rates.__getitem__)
        return log(one.tokens_per_second / rates[one] / found.factor)

    def widths(self, *, drafted: bool) -> Widths:
        """How far figures lie from what is expected without them, and without any of their engine and box."""
        single, group = [], []
        for one in self.some:
            if (one.draft_tokens > 0) != drafted:
                continue
            group.append(self.residual(one, [other for other in self.some if _is_same_box(one, other)]))
            if alike(choice_of(one), parse_box(one.hardware), [other for other in self.some if other != one]):
                single.append(self.residual(one, [one]))
        published, nothing = (_covering(residuals) for residuals in (single, group))
        return Widths(published=published, nothing=max(published, nothing))


def _is_same_box(one: Figure, other: Figure) -> bool:
    return (one.engine, one.hardware) == (other.engine, other.hardware)


def _covering(residuals: Sequence[float]) -> float:
    """The factor to either side that covers `INSIDE` of residuals of Laplace's law, whose scale is their mean size.

    A few dozen heavy-tailed figures do not tell an empirical quantile: from 75 to 80 % it jumps from 0.15 to 0.25.
    """
    return _rounded(exp(log(1 / (1 - INSIDE)) * fmean(min(abs(one), MOST) for one in residuals)))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def fit_to(some: Sequence[Figure]) -> Fit:
    """Return what `speed_fit.yaml` says, fitted to figures."""
    found = Fitted(some)
    losses = found.losses
    table = dict(zip(losses.names, losses.table(found.vector), strict=True))
    for name in [name for name, record in calibrations().items() if record.guess is None and name not in table]:
        table[name] = table[name.replace("-ampere", "-hopper")]
    return Fit(
        reduce_us=dict(zip(REDUCE, map(_rounded, losses.reduce_us(found.vector)), strict=True)),
        plain=found.widths(drafted=False),
        drafted=found.widths(drafted=True),
        losses={
            name: Centre(**dict(zip(LOSSES, map(_rounded, row), strict=True))) for name, row in sorted(table.items())
        },
    )


def text_of(found: Fit) -> str:
    """Write a fit as YAML, a line for each entry."""
    lines = ["# Written by tools/speed_fit.py, from two thirds of the figures in measurements.yaml: do not edit."]
    for name, value in msgspec.to_builtins(found).items():
        if name == "losses":
            lines += ["losses:", *(f"  {engine}: {_inline(row)}" for engine, row in value.items())]
        else:
            lines.append(f"{name}: {_inline(value)}")
    return "\n".join(lines) + "\n"


def _inline(row: dict[str, float]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in row.items()) + "}"


if __name__ == "__main__":
    FIT.write_text(text_of(fit_to(kept())), encoding="utf-8")
