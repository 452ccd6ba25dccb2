"""Speeds that `eyas tune` measured on a machine: the file that holds them, and which of them are a plan's.

A measurement counts for plans of the same engine, version, head and drafts, at the same number of conversations, if it
has the windows for an interval. Speeds of plans are those of short contexts, so that of the shortest prompts is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from eyas.recipes.plan import Choice, Data, Drafts, Measured

__all__ = ["FORMAT", "Measurements", "drafts_of", "measured_for"]

FORMAT = 1


class Measurements(Data, frozen=True, kw_only=True):
    """A measurement file: what was measured of one model on one machine. `simulated` says what is not real.

    `machine` and `weights` tell them from others: what was measured elsewhere or of other weights is not used.
    """

    format: int = FORMAT
    machine: str
    model: str
    weights: str
    simulated: str = ""
    eyas: str = ""  # version and commit that measured
    rows: tuple[Measured, ...] = ()


def drafts_of(choice: Choice) -> Drafts:
    """Return the drafts of a choice as a measurement says them."""
    is_adaptive = choice.engine == "eyas" and choice.method != "none" and not choice.are_drafts_fixed
    return "auto" if is_adaptive else choice.draft_tokens


def measured_for(choice: Choice, rows: Iterable[Measured]) -> Measured | None:
    """Return the measurement of a choice with the shortest prompts; None if there is none."""
    wanted = (choice.engine, choice.version, choice.head or "", drafts_of(choice), choice.concurrency)
    same = [one for one in rows if _key(one) == wanted and one.interval is not None]
    return min(same, key=lambda one: one.context, default=None)


def _key(one: Measured) -> tuple[str, str, str, Drafts, int]:
    return one.engine, one.version, one.head, one.draft_tokens, one.concurrency
