"""Cost in seconds of the prompts that a step reads beside its round: a fixed part and a part for each row.

Only what such a step takes beyond its round is known, so the round's estimate goes in: an error that all rounds share
ends up here, where it changes no choice, and what differs between rounds stays with `step_costs`.

The number of prompts per committed token depends on the load, not on the number of rounds, so most of their time is
the same for all draft lengths. Only passes can be saved: prompts that come during one round share one's fixed part.
"""

from __future__ import annotations

import math

__all__ = ["PromptCosts"]

KEEP = 1 - 1 / 64  # about the last 64 steps with prompts count
FIXED_ROWS = 800.0  # as many rows take as long as the fixed part: the guess where all steps read as many
TRUST_IN_GUESS = 0.05  # weight of the guess against that of all steps
CLIP = 2.0  # a step may take this many times as long as expected; beyond it counts as that
STEPS = 64  # over which the share of steps with prompts is averaged


class PromptCosts:
    """Fits a line through the newest steps by weighted least squares."""

    def __init__(self) -> None:
        self._fixed = self._row = 0.0
        self._sums = [0.0] * 5  # of weights, rows, their squares, seconds, rows times seconds
        self._share = 0.0  # of steps that read prompts

    @property
    def is_known(self) -> bool:
        return self._sums[0] > 0

    def seconds(self, num_rows: int) -> float:
        """Return the expected seconds of a pass over `num_rows`, 0 for none and while nothing is known."""
        return self._fixed + self._row * num_rows if num_rows else 0.0

    @property
    def per_round_s(self) -> float:
        """Seconds that prompts add to a round whatever it commits.

        If prompts come at random, q a token, a round of t tokens has a pass with chance p = 1 - exp(-q t). Around that
        t the fixed part F costs F p = F (1 - p) q t + F (p + (1 - p) ln(1 - p)), whose first part every token costs.
        """
        none = 1 - self._share
        return self._fixed * (self._share + none * math.log(none)) if none > 0 else self._fixed

    def count(self, num_rows: int) -> None:
        """Count a step that read `num_rows`, or none."""
        self._share += ((num_rows > 0) - self._share) / STEPS

    def observe(self, num_rows: int, seconds: float) -> None:
        """Learn from a pass over `num_rows` that took `seconds`."""
        seconds = max(0.0, seconds)
        if (expected := self.seconds(num_rows)) > 0:
            seconds = min(seconds, CLIP * expected)
        new = (1.0, num_rows, num_rows**2, seconds, num_rows * seconds)
        self._sums = [old * KEEP + added for old, added in zip(self._sums, new, strict=True)]
        weight, rows, squares, total, products = self._sums
        # The guess: the same mean, at a slope of which the fixed part is that of FIXED_ROWS.
        mean, slope = rows / weight, total / (rows + FIXED_ROWS * weight)
        prior = TRUST_IN_GUESS * weight * (mean + FIXED_ROWS) ** 2
        spread = squares - rows * mean
        slope = (products - mean * total + prior * slope) / (spread + prior)
        self._row = min(max(slope, 0.0), total / rows)  # no part is below 0
        self._fixed = total / weight - self._row * mean
