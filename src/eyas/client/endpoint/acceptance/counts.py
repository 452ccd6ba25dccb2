"""Counts of speculation under one definition, what a server says of them at one moment, and differences of that.

Pure data and functions. A round is a pass of the target that checked drafts; it commits the drafts that it accepts and
one token of its own, so the acceptance length is (accepted + rounds) / rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest

from msgspec import Struct

__all__ = ["Counts", "Reading", "accepted_of_rounds", "accepted_of_tested", "difference", "mean_length", "total"]


class Counts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Passes of the target that checked drafts, and what came of them.

    Acceptance length = (accepted + rounds) / rounds: tokens committed by a pass, its own token included.
    """

    rounds: int
    accepted: int
    drafted: int | None = None
    histogram: tuple[int, ...] | None = None  # [k]: rounds that accepted exactly k drafts
    by_position: tuple[int, ...] | None = None  # [i]: rounds that accepted draft i, 0 first
    source: str = ""  # the path or field that it was read from

    @property
    def length(self) -> float | None:
        """The acceptance length; None without a round."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else None

    @classmethod
    def of_positions(
        cls, rounds: int, by_position: Sequence[int], *, source: str, accepted: int | None = None, drafted: int | None
    ) -> Counts:
        """Return counts from those by position. Drafts form a chain: who accepts draft i has accepted all before it."""
        at_least = [rounds, *by_position, 0]
        return cls(
            rounds=rounds,
            accepted=sum(by_position) if accepted is None else accepted,
            drafted=drafted,
            histogram=tuple(a - b for a, b in pairwise(at_least)),
            by_position=tuple(by_position),
            source=source,
        )

    @classmethod
    def of_histogram(cls, histogram: Sequence[int], *, source: str, drafted: int | None) -> Counts:
        """Return counts from rounds by the number of drafts that they accepted."""
        by_position = [sum(histogram[i:]) for i in range(1, len(histogram))]
        return cls.of_positions(sum(histogram), by_position, source=source, drafted=drafted)


class Reading(Struct, frozen=True, kw_only=True):
    """Words of a server about its speculation at one moment.

    `counts` are since it started, or, `is_drained`, since they were last read, by anyone. `not_offered` says why there
    are none. `length` is the server's own acceptance length where that is all it tells, `is_recent` if it is of the
    last moments only. `started` is other after the server, or its engine, has started again.
    """

    source: str
    counts: Counts | None = None
    is_drained: bool = False
    length: float | None = None
    is_recent: bool = False
    started: tuple[float, ...] = ()
    not_offered: str = ""

    @property
    def acceptance_length(self) -> float | None:
        """The acceptance length so far; None if the server says nothing of it, or has drafted nothing."""
        if self.counts is None:
            return self.length
        return None if self.counts.drafted == 0 else self.counts.length


def difference(before: Reading, after: Reading) -> Counts | str:
    """Return what was counted between two readings of one server, or, in a line, why that cannot be said."""
    first, last = before.counts, after.counts
    if last is None or first is None:
        return f"not offered: {(after if last is None else before).not_offered}"
    if after.is_drained:
        return last
    if before.started != after.started:
        return "the server has started again in between"
    for name in ("rounds", "accepted", "drafted"):
        was, now = getattr(first, name), getattr(last, name)
        if was is not None and now is not None and now < was:
            return f"the server has started again in between: its count of {name} fell from {was:,} to {now:,}"
    return Counts(
        rounds=last.rounds - first.rounds,
        accepted=last.accepted - first.accepted,
        drafted=None if last.drafted is None or first.drafted is None else last.drafted - first.drafted,
        histogram=_less(last.histogram, first.histogram, first.rounds),
        by_position=_less(last.by_position, first.by_position, first.rounds),
        source=last.source,
    )


def _less(last: Sequence[int] | None, first: Sequence[int] | None, rounds_before: int) -> tuple[int, ...] | None:
    """Subtract by index. Positions appear with their first count, so that missing ones are 0."""
    if last is None or (first is None and rounds_before):
        return None
    return tuple(now - was for now, was in zip_longest(last, first or (), fillvalue=0))


def total(items: Iterable[Counts]) -> Counts | None:
    """Return the sum, whose acceptance length weighs every round alike (the system's view); None of nothing."""
    found = [item for item in items if item.rounds]
    if not found:
        return None
    drafted = [item.drafted for item in found if item.drafted is not None]
    return Counts(
        rounds=sum(item.rounds for item in found),
        accepted=sum(item.accepted for item in found),
        drafted=sum(drafted) if len(drafted) == len(found) else None,
        histogram=_sum([item.histogram for item in found]),
        by_position=_sum([item.by_position for item in found]),
        source=found[0].source,
    )


def _sum(rows: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    known = [row for row in rows if row is not None]
    return tuple(map(sum, zip_longest(*known, fillvalue=0))) if len(known) == len(rows) else None


def mean_length(items: Iterable[Counts]) -> float | None:
    """Return the mean of the items' own acceptance lengths: of requests, the user's view; None of nothing."""
    lengths = [item.length for item in items if item.length is not None]
    return sum(lengths) / len(lengths) if lengths else None


def accepted_of_rounds(counts: Counts) -> tuple[float, ...]:
    """Return for each draft position the share of all rounds that accepted it; () if the server does not tell."""
    return tuple(accepted / counts.rounds for accepted in counts.by_position or () if counts.rounds)


def accepted_of_tested(counts: Counts) -> tuple[float | None, ...]:
    """Return for each draft position the share of rounds that accepted it, of those that accepted the one before.

    None where no round came so far. Rounds that drafted less count as if the draft had been wrong.
    """
    at_least = [counts.rounds, *(counts.by_position or ())]
    return tuple(accepted / tested if tested else None for tested, accepted in pairwise(at_least))
