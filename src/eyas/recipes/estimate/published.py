"""Published figures: which are of a plan's engine and box, and how they move and narrow an estimate.

The model of `speed.py` has a few losses for each engine and kind of memory, so it misses what is particular to a box.
An estimate is moved by the mean of what figures of that engine on that box differ from the model, in logarithms: each
weighs less the further its setting lies away, and the model counts as one figure more. What differs by more than
`MOST` was of something else and counts as if it differed by that. Figures with drafts say nothing of plans without:
acceptance is in them. A range is narrower where anything is published of that engine and box (`Widths`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, log

from msgspec import Struct
from msgspec.structs import replace

from eyas.recipes.plan import Box, Choice, Published
from eyas.recipes.records import Measurement

__all__ = ["SHORT", "Figure", "Support", "alike", "figures", "published", "support"]

SHORT = 2048  # tokens of context where a source states none, and for which speeds are given
MODEL = 0.6  # weight of the model against a figure of the setting itself
MOST = 0.35  # logarithm
FAR = 8.0  # factor of concurrency at which a figure weighs 1/e
OTHER_MODEL, OTHER_DRAFTS, OTHER_KIND = 0.7, 0.5, 1.0  # of that distance: other model, other drafts, with or without


class Figure(Struct, frozen=True, kw_only=True):
    """Aggregate tokens per second of `concurrency` requests with `context` tokens each."""

    model: str
    hardware: str
    engine: str
    head: str = ""
    draft_tokens: int = 0
    concurrency: int
    context: int
    tokens_per_second: float
    acceptance_length: float | None = None  # where the source says it
    is_acceptance_set: bool = False


class Support(Struct, frozen=True, kw_only=True):
    """The factor by which figures move a rate, and whether there are any."""

    factor: float = 1.0
    is_published: bool = False


def figures(measurements: Iterable[Measurement]) -> list[Figure]:
    """List distinct figures, with and without drafts."""
    found: dict[Figure, None] = {}
    for one in measurements:
        same = Figure(
            model=one.model,
            hardware=one.hardware,
            engine=one.engine,
            concurrency=one.concurrency,
            context=SHORT if one.context is None else one.context,
            tokens_per_second=0,
        )
        plain = one.baseline_tokens_per_second if one.draft_tokens else one.tokens_per_second
        if plain:
            found[replace(same, tokens_per_second=plain)] = None
        if one.head and one.draft_tokens:
            drafted = replace(
                same,
                head=one.head,
                draft_tokens=one.draft_tokens,
                tokens_per_second=one.tokens_per_second,
                acceptance_length=one.acceptance_length,
                is_acceptance_set=one.is_acceptance_set,
            )
            found[drafted] = None
    return list(found)


def published(choice: Choice, box: Box, measurements: Iterable[Measurement]) -> Iterable[Published]:
    """Measurements of the same model, box and engine with the choice's head or none, or beside none; the nearest
    concurrency first."""
    setting = (choice.model, _measured_on(choice, box), choice.engine)
    same = [one for one in measurements if (one.model, one.hardware, one.engine) == setting]
    able = [one for one in same if one.head in ("", choice.head) or one.baseline_tokens_per_second]
    for one in sorted(able, key=lambda one: abs(one.concurrency - choice.concurrency)):
        yield Published(text=_said(one), source="; ".join(one.sources), date=one.date)


def alike(choice: Choice, box: Box, known: Iterable[Figure]) -> list[Figure]:
    """List figures of the engine and box; only those without drafts where the choice has none."""
    same = [one for one in known if (one.engine, one.hardware) == (choice.engine, _measured_on(choice, box))]
    return [one for one in same if choice.draft_tokens or not one.draft_tokens]


def support(choice: Choice, box: Box, known: Iterable[Figure], expected: Callable[[Figure], float]) -> Support:
    """Weigh figures of the engine and box against `expected`, the rate of the model in a figure's setting."""
    same = alike(choice, box, known)
    if not same:
        return Support()
    total, weights = 0.0, MODEL
    for one in same:
        weight = exp(-_distance(one, choice))
        differs = log(one.tokens_per_second / expected(one))
        total += weight * min(max(differs, -MOST), MOST)
        weights += weight
    return Support(factor=exp(total / weights), is_published=True)


def _measured_on(choice: Choice, box: Box) -> str:
    """Return the box that figures are of: an engine that does not divide the work is as fast as on one GPU."""
    return box.hardware.name if choice.tensor_parallel == 1 else f"{choice.tensor_parallel}x{box.hardware.name}"


def _distance(one: Figure, choice: Choice) -> float:
    if (one.draft_tokens > 0) != (choice.draft_tokens > 0):
        drafts = OTHER_KIND
    else:
        drafts = OTHER_DRAFTS if (one.head, one.draft_tokens) != (choice.head or "", choice.draft_tokens) else 0.0
    model = OTHER_MODEL if one.model != choice.model else 0.0
    return log(_factor(one, choice)) / log(FAR) + model + drafts


def _factor(one: Figure, choice: Choice) -> float:
    return max(one.concurrency / choice.concurrency, choice.concurrency / one.concurrency)


def _said(one: Measurement) -> str:
    context = f" after {one.context} tokens of context" if one.context is not None else ""
    drafts = f" with {one.draft_tokens} drafts of {one.head}" if one.head else " without drafts"
    accepted = f", acceptance length {one.acceptance_length:g}" if one.acceptance_length else ""
    against = f", {one.baseline_tokens_per_second:g} without" if one.baseline_tokens_per_second else ""
    notes = [one.note, f"only shown, it moves no estimate: {one.set_apart}" if one.set_apart else ""]
    note = f" ({'; '.join(filter(None, notes))})" if any(notes) else ""
    return f"{one.tokens_per_second:g} tok/s at {one.concurrency}{context}{drafts}{accepted}{against}{note}"
