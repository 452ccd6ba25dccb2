"""Wording of figures for people: ranges, draft tokens, and the acceptance length from which speculation pays."""

from __future__ import annotations

from eyas.base.settings.config import MAX_AUTO_DRAFTS
from eyas.recipes.measured import drafts_of
from eyas.recipes.plan import Choice, Drafts, Range, SpeedEstimate

__all__ = ["draft_tokens", "drafting", "pays_from", "span"]


def span(value: Range) -> str:
    """Format a range, e.g. `1.05..1.24`, `38..131`."""
    digits = 0 if value.high >= 100 else 1 if value.high >= 10 else 2
    return f"{value.low:.{digits}f}..{value.high:.{digits}f}"


def pays_from(estimate: SpeedEstimate) -> str:
    """Format e.g. `it pays from an acceptance length of 1.71, 2.22..2.37 are expected`."""
    expected = f"{span(estimate.acceptance)} are expected" if estimate.acceptance else "what to expect is not known"
    return f"it pays from an acceptance length of {estimate.break_even_length:.2f}, {expected}"


def draft_tokens(number: Drafts) -> str:
    """Format e.g. `1 draft token`, `3 draft tokens`, `auto draft tokens (up to 7)`."""
    if number == "auto":
        return f"auto draft tokens (up to {MAX_AUTO_DRAFTS})"
    return f"{number} draft token{'s' * (number != 1)}"


def drafting(choice: Choice) -> str:
    """Format e.g. `eagle3 with nvidia-v3, 3 draft tokens`."""
    if choice.head is None:
        return "no speculation"
    return f"{choice.method} with {choice.head}, {draft_tokens(drafts_of(choice))}"
