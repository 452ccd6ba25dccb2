"""The drafts of one round: chosen before the step, carried by its plan, drawn by the runner."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from eyas.engine.draft_length.confidence import Cut
from eyas.engine.draft_length.goodput import DraftChoice

__all__ = ["RoundDrafts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundDrafts:
    """Draft lengths of one round. The default drafts nothing, as do slots that `limits` does not name."""

    num_drafts: int = 0  # rows after the last token of each sequence
    head_drafts: int = 0  # of them drawn by the head, for sequences without lookup
    limits: Mapping[int, int] = field(default_factory=dict)  # drafts by slot, `num_drafts` at most
    by_lookup: Collection[int] = ()  # slots that use prompt lookup
    cut: Cut = field(default_factory=Cut)  # which of the head's drafts are worth their row
    num_missed: int = 0  # tokens of sequences back from a pause that the head may not have read

    @classmethod
    def of(
        cls, slots: Sequence[int], choice: DraftChoice, cut: Cut, *, without: Collection[int] = (), num_missed: int = 0
    ) -> RoundDrafts:
        """Return a choice for the sequences in `slots`, of which those in `without` draft nothing after all."""
        limits = {slot: 0 if slot in without else k for slot, k in zip(slots, choice.limits, strict=True)}
        num_drafts = max(limits.values())
        return cls(
            num_drafts=num_drafts,
            head_drafts=min(choice.head_drafts, num_drafts),
            limits=limits,
            by_lookup={slot for slot, looks_up in zip(slots, choice.by_lookup, strict=True) if looks_up},
            cut=cut,
            num_missed=num_missed,
        )
