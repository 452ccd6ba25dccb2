"""Synthetic acceptance: values of `--simulate-acceptance`, and the acceptance rates that they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eyas.base.errors import UserError

__all__ = ["SimulatedAcceptance", "parse_acceptance"]


@dataclass(frozen=True, slots=True)
class SimulatedAcceptance:
    """An acceptance length (above 1), or alternating rates of a draft whose predecessors were accepted."""

    text: str
    values: tuple[float, ...]

    def chances(self, num_drafts: int) -> tuple[float, ...]:
        """Return the acceptance rates for `num_drafts` drafts a round, which a length refers to. Raises UserError."""
        length = self.values[0]
        if length <= 1:
            return self.values
        if length >= num_drafts + 1:
            raise UserError(
                f"with {num_drafts} drafts a round commits fewer than {num_drafts + 1} tokens, not {length:g}"
            )
        return (chance_of(length, num_drafts),)


def parse_acceptance(text: str) -> SimulatedAcceptance:
    """Read `2.6`, `0.7` or `0.9/0.1`. Raises ValueError for anything else."""
    try:
        values = tuple(float(part) for part in text.split("/"))
    except ValueError:
        values = ()
    is_length = len(values) == 1 and 1 < values[0] < math.inf
    if not values or not (is_length or all(0 <= value <= 1 for value in values)):
        raise ValueError(
            f"wants an acceptance length such as 2.6, a chance such as 0.7, or chances in turn, 0.9/0.1, got '{text}'"
        )
    return SimulatedAcceptance(text, values)


def chance_of(length: float, num_drafts: int) -> float:
    """Solve 1 + p + ... + p^num_drafts = length for p, the acceptance rate of a draft after accepted ones."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(num_drafts + 1)) < length:
            low = middle
        else:
            high = middle
    return low
