"""Counts of what clients send, for `/metrics`: kept by dialects, with labels that clients choose, hence bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Lock

__all__ = ["OTHER", "Tallies", "Tally"]

MAX_VALUES = 64  # sets of labels of one tally
OTHER = "other"  # each label of what came after them


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """The name of a counter, its description and its labels."""

    name: str
    text: str
    labels: tuple[str, ...]


class Tallies:
    """The tallies of one server; safe in threads."""

    def __init__(self) -> None:
        self._counts: dict[Tally, Counter[tuple[str, ...]]] = {}
        self._lock = Lock()

    def count(self, tally: Tally, *values: str) -> bool:
        """Count one; return whether these labels are new, which holds for MAX_VALUES of them at most."""
        with self._lock:
            counts = self._counts.setdefault(tally, Counter())
            is_new = values not in counts
            if is_new and len(counts) >= MAX_VALUES:
                is_new, values = False, (OTHER,) * len(values)
            counts[values] += 1
            return is_new

    def items(self) -> Iterator[tuple[Tally, Mapping[tuple[str, ...], int]]]:
        """Yield each tally with its counts by labels."""
        with self._lock:
            found = [(tally, dict(counts)) for tally, counts in self._counts.items()]
        yield from found
