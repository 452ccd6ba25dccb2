"""Budgets of time for a request: waiting in a queue, reading its prompt, each pause in its answer, and all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = ["LOAD_S", "Budgets", "Spans", "in_words"]

Spans = Mapping[str, float | None]  # some of the fields of Budgets

SPAN_S = 120.0
LOAD_S = 1800.0  # that a request waits for a model that loads, where its plan has no limit, or for room to load it


@dataclass(frozen=True, kw_only=True, slots=True)
class Budgets:
    """The longest times in seconds; None is no limit.

    `prefill` runs from sending the request to the first content, `stall` from one content to the next.
    """

    queue_s: float | None = SPAN_S
    prefill_s: float | None = SPAN_S
    stall_s: float | None = SPAN_S
    total_s: float | None = None

    def with_spans(self, spans: Spans) -> Budgets:
        """Return these budgets with other values for some of them."""
        return replace(self, **spans) if spans else self


def in_words(spans: Spans) -> str:
    """Return budgets for people: `queue 120 s, prefill 120 s, stall 120 s, total none`."""
    return ", ".join(
        f"{name.removesuffix('_s')} {'none' if seconds is None else f'{seconds:g} s'}"
        for name, seconds in spans.items()
    )
