"""Budgets of time for a request: waiting in a queue, reading its prompt, each pause in its answer, and all of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Budgets"]

SPAN_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Budgets:
    """The longest times in seconds; None is no limit.

    `prefill` runs from sending the request to the first content, `stall` from one content to the next.
    """

    queue_s: float | None = SPAN_S
    prefill_s: float | None = SPAN_S
    stall_s: float | None = SPAN_S
    total_s: float | None = None
