"""Counts of what documents teach: tokens by segment, runs, and cells by depth under each rule."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from eyas.train.types import Document, Rule, Segment

__all__ = ["Summary", "cells_per_depth"]


def cells_per_depth(document: Document, rule: Rule, num_depths: int) -> list[int]:
    """Return the number of cells of each depth, by formula: what `supervises` says row by row.

    "loose": depth j teaches each generated token at position j + 2 or behind, for which there is a row to draft from.
    "faithful": a run of n tokens has max(0, n - 1 - j).
    """
    if rule == "loose":
        positions = np.flatnonzero(document.runs_T >= 0)
        return [len(positions) - int(positions.searchsorted(j + 2)) for j in range(num_depths)]
    lengths = np.bincount(document.runs_T[document.runs_T >= 0])
    return [int(np.maximum(lengths - 1 - j, 0).sum()) for j in range(num_depths)]


@dataclass(kw_only=True, slots=True)
class Summary:
    """Sums over documents."""

    num_depths: int
    num_documents: int = 0
    num_tokens: int = 0
    num_runs: int = 0
    by_segment: dict[Segment, int] = field(default_factory=lambda: dict.fromkeys(Segment, 0))
    cells: dict[Rule, list[int]] = field(default_factory=dict)

    @property
    def num_supervised(self) -> int:
        return self.num_tokens - self.by_segment[Segment.GIVEN]

    def add(self, document: Document) -> None:
        self.num_documents += 1
        self.num_tokens += len(document)
        self.num_runs += int(document.runs_T.max(initial=-1)) + 1
        for segment, count in enumerate(np.bincount(document.segments_T).tolist()):
            self.by_segment[Segment(segment)] += count
        rules: tuple[Rule, ...] = ("loose", "faithful")
        for rule in rules:
            own = cells_per_depth(document, rule, self.num_depths)
            before = self.cells.get(rule, [0] * self.num_depths)
            self.cells[rule] = [a + b for a, b in zip(before, own, strict=True)]
