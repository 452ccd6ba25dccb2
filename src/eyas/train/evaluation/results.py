"""Results of an evaluation: acceptance by draft length, depth, context and segment; JSON, and lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["READINGS", "Acceptance", "Counts", "Evaluation", "Reading"]

Reading = Literal["text", "target", "sampled"]
READINGS: tuple[Reading, ...] = ("text", "target", "sampled")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Expected rounds and the tokens that they commit, bonus tokens included."""

    rounds: float
    tokens: float

    @property
    def length(self) -> float | None:
        """Acceptance length; None without rounds."""
        return self.tokens / self.rounds if self.rounds else None

    def json(self) -> dict[str, float | None]:
        length = None if self.length is None else round(self.length, 4)
        return {"acceptance_length": length, "rounds": round(self.rounds, 2), "tokens": round(self.tokens, 2)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """Acceptance with a given number of drafts a round.

    All but `all_tokens` is over content: of rounds whose first token is content, the tokens up to the first one that
    is none. A round belongs to the context bucket of its newest known token and to the segment of its first one.
    """

    draft_tokens: int
    content: Counts
    interval: tuple[float, float] | None  # 95 % of content.length, bootstrap over documents; None without rounds
    all_tokens: Counts
    reached: tuple[float, ...]  # by depth: rounds in which all drafts before this one were accepted
    accepted: tuple[float, ...]  # by depth
    by_context: Mapping[str, Counts]
    by_segment: Mapping[str, Counts]

    @property
    def accepted_if_reached(self) -> tuple[float | None, ...]:
        return tuple(a / r if r else None for a, r in zip(self.accepted, self.reached, strict=True))

    def json(self) -> dict[str, Any]:
        """Return the JSON, with the keys of `eyas bench acceptance` where the meaning is the same."""
        return {
            "draft_tokens": self.draft_tokens,
            **self.content.json(),
            "ci95": None if self.interval is None else [round(x, 4) for x in self.interval],
            "all_tokens": self.all_tokens.json(),
            "accepted_if_reached": [None if x is None else round(x, 4) for x in self.accepted_if_reached],
            "by_context": {name: counts.json() for name, counts in self.by_context.items()},
            "by_segment": {name: counts.json() for name, counts in self.by_segment.items()},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Acceptance of a head on held-out documents, by reading and draft length.

    "text": temperature 0, on text that the target wrote greedily what its engine measures, else drafts have to hit the
    text. "target": temperature 0, drafts have to hit the target's most likely token after the text. "sampled": at
    `temperature`, on text that the target wrote at it, what its engine measures in expectation.
    """

    num_documents: int
    num_tokens: int  # generated
    num_in_vocabulary: int  # of these, tokens that the head can draft
    temperature: float | None  # of "sampled"; None: not evaluated
    acceptance: Mapping[Reading, tuple[Acceptance, ...]]  # with 1, 2, ... drafts a round

    def at(self, reading: Reading, draft_tokens: int) -> Acceptance:
        """Return the acceptance with this many drafts a round."""
        return self.acceptance[reading][draft_tokens - 1]

    def json(self) -> dict[str, Any]:
        return {
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            "in_draft_vocabulary": round(self.num_in_vocabulary / max(self.num_tokens, 1), 6),
            "temperature": self.temperature,
            "acceptance": {reading: [x.json() for x in found] for reading, found in self.acceptance.items()},
        }

    def lines(self, draft_tokens: int) -> list[str]:
        """Return lines for people; depths, contexts and segments are those with `draft_tokens` drafts a round."""
        covered = 100 * self.num_in_vocabulary / max(self.num_tokens, 1)
        lines = [
            f"{self.num_documents} documents, {self.num_tokens} generated tokens, {covered:.2f} % in the vocabulary"
        ]
        for reading, found in self.acceptance.items():
            lines += ["", self._title(reading)]
            lines += [f"  {x.draft_tokens} drafts a round: {_length(x.content)}{_interval(x)}" for x in found]
            chosen = found[draft_tokens - 1]
            shares = ["-" if x is None else f"{100 * x:.1f} %" for x in chosen.accepted_if_reached]
            lines.append(f"  accepted if reached, {draft_tokens} drafts: {', '.join(shares)}")
            lines.append(f"  over all tokens, headers included: {_length(chosen.all_tokens)}")
            for title, groups in (("context", chosen.by_context), ("segment", chosen.by_segment)):
                parts = [f"{name} {_length(counts)} ({counts.rounds:.0f} rounds)" for name, counts in groups.items()]
                lines.append(f"  by {title}: {', '.join(parts) or 'no rounds'}")
        return lines

    def _title(self, reading: Reading) -> str:
        if reading == "text":
            return "temperature 0, drafts against the text"
        if reading == "target":
            return "temperature 0, drafts against the target's most likely token"
        return f"temperature {self.temperature:g}, drafts and target under the same noise, expected"


def _length(counts: Counts) -> str:
    return "-" if counts.length is None else f"{counts.length:.2f}"


def _interval(found: Acceptance) -> str:
    return "" if found.interval is None else f" (95 % {found.interval[0]:.2f}..{found.interval[1]:.2f})"
