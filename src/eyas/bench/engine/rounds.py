"""Counts what speculative rounds commit, over all tokens or over content only.

*Content* is what stands between <|message|> and the token that ends the message, both excluded. Headers such as
`<|end|><|start|>assistant<|channel|>final<|message|>` are nearly certain and would flatter the drafter.

A round counts over content iff the first token that it commits is content, and it counts with its content tokens up to
the first token that is none. The acceptance length over content is the number of these tokens per such round. So a
round that a message's end cuts short counts in full as a round, and content that a round commits after a header does
not count at all: both make the figure smaller, if anything. The token drawn from the prompt's last position belongs
to no round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import TokenEvent

__all__ = ["Acceptance", "ContentMarker", "count_content", "count_rounds"]


@dataclass(slots=True)
class Acceptance:
    """Counts of rounds: `histogram[n]` committed n tokens, bonus token included; draft positions count from 1.

    A draft was reached if all before it were accepted.
    """

    histogram: Counter[int] = field(default_factory=Counter)
    reached: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    num_drafts: int = 0

    def add(self, num_tokens: int, num_drafts: int, num_accepted: int) -> None:
        """Add one round, of whose committed tokens the first `num_tokens` count."""
        self.histogram[num_tokens] += 1
        self.num_drafts += num_drafts
        for position in range(1, min(num_drafts, num_accepted + 1, num_tokens) + 1):
            self.reached[position] += 1
            self.accepted[position] += position <= num_accepted

    def merge(self, other: Acceptance) -> None:
        self.histogram += other.histogram
        self.reached += other.reached
        self.accepted += other.accepted
        self.num_drafts += other.num_drafts

    @property
    def num_rounds(self) -> int:
        return self.histogram.total()

    @property
    def num_tokens(self) -> int:
        return sum(size * count for size, count in self.histogram.items())

    @property
    def length(self) -> float:
        """Acceptance length: tokens committed per round, bonus token included."""
        return self.num_tokens / self.num_rounds

    def json(self) -> dict[str, Any]:
        """Return the JSON; `accepted_if_reached` and `accepted_of_rounds` list the share of draft position 1, 2, ..."""
        positions = range(1, max(self.reached, default=0) + 1)
        return {
            "acceptance_length": round(self.length, 4),
            "rounds": self.num_rounds,
            "tokens": self.num_tokens,
            "drafts_per_round": round(self.num_drafts / self.num_rounds, 4),
            "histogram": {str(size): self.histogram[size] for size in range(1, max(self.histogram) + 1)},
            "accepted_if_reached": [round(self.accepted[i] / self.reached[i], 4) for i in positions],
            "accepted_of_rounds": [round(self.accepted[i] / self.num_rounds, 4) for i in positions],
        }


class ContentMarker:
    """Distinguishes content from headers in the tokens of one answer, by the rules of `base.harmony.parser`."""

    def __init__(self, codec: TextCodec) -> None:
        special = codec.special
        self._message = special["<|message|>"]
        ends = ("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
        self._ends = {special[name] for name in ends}
        self._inside = False

    def mark(self, ids: Iterable[int]) -> list[bool]:
        marks = []
        for token in ids:
            self._inside = self._inside and token not in self._ends
            marks.append(self._inside)
            self._inside = self._inside or token == self._message
        return marks


def count_rounds(events: Iterable[TokenEvent]) -> Acceptance:
    """Count over all tokens of the rounds of one answer."""
    counts = Acceptance()
    for event in events:
        if event.round is not None:
            counts.add(len(event.token_ids), len(event.round.draft_ids), event.round.num_accepted)
    return counts


def count_content(events: Sequence[TokenEvent], codec: TextCodec) -> Acceptance:
    """Count over the content of one answer, as this module defines it."""
    counts, marker = Acceptance(), ContentMarker(codec)
    for event in events:
        marks = marker.mark(event.token_ids)
        num_content = (marks + [False]).index(False)
        if event.round is not None and num_content:
            counts.add(num_content, len(event.round.draft_ids), event.round.num_accepted)
    return counts
