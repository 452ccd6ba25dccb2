"""Prompt rows beside decoding for a target inter-token latency: its 95th percentile shall stay below.

A step with prompts takes its round, a fixed part and a part for each row (`engine.draft_length.prompt_costs`). Either
each step reads as many rows as fit the target, or every 21st as many as without one: less than 5 % of the latencies are
above the target then. That which reads more rows a second is done; few rows, or none, fit where the fixed part is long.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from eyas.engine.draft_length.prompt_costs import PromptCosts

__all__ = ["TargetItl"]

APART = 21  # steps from one that may be late to the next
NEWEST = 32  # rounds whose median is the time of the next
MARGIN = 0.95  # of the target is planned for


class TargetItl:
    """Learns from the steps that decode what they take, and says how many prompt rows the next may have."""

    def __init__(self, seconds: float, *, tile: int, usual_rows: int) -> None:
        """`usual_rows` are those of a step without a target."""
        self._target = seconds
        self._usual = usual_rows
        self._tile = tile
        self._prompts = PromptCosts()
        self._rounds: deque[float] = deque(maxlen=NEWEST)
        self._since_late = APART
        self._may_be_late = False

    def rows(self) -> int | None:
        """Return the most prompt rows of the next step, None for as many as without a target; counts the step."""
        self._since_late += 1
        self._may_be_late = False
        round_s, budget_s = median(self._rounds) if self._rounds else 0.0, MARGIN * self._target
        if not self._prompts.is_known:
            return self._tile
        if round_s >= budget_s:  # no choice of rows would help
            return None
        fixed, usual = self._prompts.seconds(1), self._prompts.seconds(self._usual)
        per_row = max((usual - fixed) / max(self._usual - 1, 1), 1e-9)
        rows = int((budget_s - round_s - fixed) / per_row) // self._tile * self._tile
        if rows >= min(self._tile, self._usual):
            in_each = rows / (round_s + self._prompts.seconds(rows))
            if in_each >= self._usual / (APART * round_s + usual):
                return rows
        self._may_be_late = self._since_late >= APART
        return None if self._may_be_late else 0

    def read(self, num_rows: int) -> None:
        """Note the prompt rows of the step that was planned."""
        if num_rows and self._may_be_late:
            self._since_late = 0

    def observe(self, num_prompt_rows: int, seconds: float) -> None:
        """Learn from a step that decoded."""
        if not num_prompt_rows:
            self._rounds.append(seconds)
        elif self._rounds:
            self._prompts.observe(num_prompt_rows, seconds - median(self._rounds))
