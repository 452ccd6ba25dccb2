"""Published measurements of a plan's own setting, and how they narrow an estimate.

The model of `speed.py` is one for all engines of a kind of hardware, so its ranges overlap and cannot rank engines that
were measured. Where the same model, hardware and engine was measured at a concurrency within a factor of 1.5, only
that part of the range is kept which is within 0.8 to 1.25 of the measurement: half of what two reports of the same
setting differ by. If no part is, the measurement was of something else (another build, other weights) and changes
nothing; it is shown with the estimate in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from eyas.recipes.plan import Box, Choice, Published, Range
from eyas.recipes.records import Measurement

__all__ = ["SHORT", "Known", "drafted", "narrowed", "pessimism_of", "plain", "published"]

SHORT = 2048  # tokens of context where a source states none, and for which speeds are given
NEAR = 1.5  # factor of concurrency
BAND = (0.8, 1.25)
STEPS = 30  # of a bisection: to a billionth


class Known(Struct, frozen=True, kw_only=True):
    """Known aggregate tokens per second of `concurrency` requests with `context` tokens each."""

    concurrency: int
    context: int
    tokens_per_second: float


def published(choice: Choice, box: Box, measurements: Iterable[Measurement]) -> Iterable[Published]:
    """Measurements of the same model, box and engine with the choice's head or none, the nearest concurrency first."""
    same = [one for one in _same(choice, box, measurements) if one.head in ("", choice.head)]
    for one in sorted(same, key=lambda one: abs(one.concurrency - choice.concurrency)):
        yield Published(text=_said(one), source="; ".join(one.sources), date=one.date)


def plain(choice: Choice, box: Box, measurements: Iterable[Measurement]) -> Known | None:
    """Return what was measured without drafts, alone or together with any head."""
    found = [
        (one, said)
        for one in _same(choice, box, measurements)
        if (said := one.baseline_tokens_per_second if one.draft_tokens else one.tokens_per_second)
    ]
    return _closest(choice, found)


def drafted(choice: Choice, box: Box, measurements: Iterable[Measurement]) -> Known | None:
    """Return what was measured with as many drafts of the choice's head."""
    found = [
        (one, one.tokens_per_second)
        for one in _same(choice, box, measurements)
        if one.head and (one.head, one.draft_tokens) == (choice.head, choice.draft_tokens)
    ]
    return _closest(choice, found)


def pessimism_of(known: Known, rate: Callable[[float], float]) -> tuple[float, float]:
    """The part of 0..1 where `rate` (of the known setting, falling) agrees with what is known; all if none does."""
    least, most = (factor * known.tokens_per_second for factor in BAND)
    if rate(0.0) < least or rate(1.0) > most:
        return 0.0, 1.0
    return _where(rate, most), _where(rate, least)


def narrowed(within: Range, said: float) -> Range:
    """Return the part of a range that agrees with a figure; all of it if nothing does."""
    low, high = max(within.low, BAND[0] * said), min(within.high, BAND[1] * said)
    return Range(low=low, high=high) if low <= high else within


def _same(choice: Choice, box: Box, measurements: Iterable[Measurement]) -> list[Measurement]:
    hardware = box.hardware.name if box.num_gpus == 1 else f"{box.num_gpus}x{box.hardware.name}"
    setting = (choice.model, hardware, choice.engine)
    return [one for one in measurements if (one.model, one.hardware, one.engine) == setting]


def _closest(choice: Choice, found: Iterable[tuple[Measurement, float]]) -> Known | None:
    """Choose the nearest in concurrency, then in context, then the newest."""
    near = [
        Known(
            concurrency=one.concurrency,
            context=SHORT if one.context is None else one.context,
            tokens_per_second=said,
        )
        for one, said in sorted(found, key=lambda row: row[0].date, reverse=True)
        if _factor(one, choice) <= NEAR
    ]
    return min(near, key=lambda known: (_factor(known, choice), abs(known.context - SHORT)), default=None)


def _factor(one: Measurement | Known, choice: Choice) -> float:
    return max(one.concurrency / choice.concurrency, choice.concurrency / one.concurrency)


def _where(rate: Callable[[float], float], wanted: float) -> float:
    """Find where a falling rate is `wanted`, or the end that is nearest to it."""
    low, high = 0.0, 1.0
    if rate(low) <= wanted:
        return low
    if rate(high) >= wanted:
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) > wanted else (low, middle)
    return high


def _said(one: Measurement) -> str:
    context = f" after {one.context} tokens of context" if one.context is not None else ""
    drafts = f" with {one.draft_tokens} drafts of {one.head}" if one.head else " without drafts"
    accepted = f", acceptance length {one.acceptance_length:g}" if one.acceptance_length else ""
    against = f", {one.baseline_tokens_per_second:g} without" if one.baseline_tokens_per_second else ""
    note = f" ({one.note})" if one.note else ""
    return f"{one.tokens_per_second:g} tok/s at {one.concurrency}{context}{drafts}{accepted}{against}{note}"
