"""`--simulate-acceptance`: what it may say, and the chances that it means."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from eyas.base.errors import UserError

__all__ = ["SimulatedAcceptance", "parse_acceptance"]


@dataclass(frozen=True, slots=True)
class SimulatedAcceptance:
    """A length of rounds (above 1), or chances that take turns, of a draft whose predecessors were right."""

    text: str
    values: tuple[float, ...]

    def chances(self, num_drafts: int) -> tuple[float, ...]:
        """For `num_drafts` drafts a round, which a length refers to. Raises UserError."""
        length = self.values[0]
        if length <= 1:
            return self.values
        if length >= num_drafts + 1:
            raise UserError(
                f"with {num_drafts} drafts a round commits fewer than {num_drafts + 1} tokens, not {length:g}"
            )
        return (chance_of(length, num_drafts),)


def parse_acceptance(text: str) -> SimulatedAcceptance:
    """For argparse: `2.6`, `0.7` or `0.9/0.1`."""
    try:
        values = tuple(float(part) for part in text.split("/"))
    except ValueError:
        values = ()
    is_length = len(values) == 1 and 1 < values[0] < math.inf
    if not values or not (is_length or all(0 <= value <= 1 for value in values)):
        raise argparse.ArgumentTypeError(
            f"wants an acceptance length such as 2.6, a chance such as 0.7, or chances in turn, 0.9/0.1, got '{text}'"
        )
    return SimulatedAcceptance(text, values)


def chance_of(length: float, num_drafts: int) -> float:
    """The chance p, the same for each draft whose predecessors were right, with 1 + p + ... + p^num_drafts = length."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(num_drafts + 1)) < length:
            low = middle
        else:
            high = middle
    return low
