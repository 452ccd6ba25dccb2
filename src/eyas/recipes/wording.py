"""Wording of figures for people: ranges, and the acceptance length from which speculation pays."""

from __future__ import annotations

from eyas.recipes.plan import Range, SpeedEstimate

__all__ = ["pays_from", "span"]


def span(value: Range) -> str:
    """Format a range, e.g. `1.05..1.24`, `38..131`."""
    digits = 0 if value.high >= 100 else 1 if value.high >= 10 else 2
    return f"{value.low:.{digits}f}..{value.high:.{digits}f}"


def pays_from(estimate: SpeedEstimate) -> str:
    """Format e.g. `it pays from an acceptance length of 1.71, 2.22..2.37 are expected`."""
    expected = f"{span(estimate.acceptance)} are expected" if estimate.acceptance else "what to expect is not known"
    return f"it pays from an acceptance length of {estimate.break_even_length:.2f}, {expected}"
