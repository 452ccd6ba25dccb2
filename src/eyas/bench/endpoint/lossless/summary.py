"""Comparisons of many answers, in counts and words: identical share, first differences, defects per 10,000 tokens."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from eyas.bench.endpoint.lossless.replies import Divergence, Kind
from eyas.bench.endpoint.records import Stamp
from eyas.bench.stats import Interval, poisson_interval

__all__ = ["Comparison", "Losslessness", "Result", "Sampling"]

Sampling = Literal["greedy", "seeded"]
PER = 10_000  # tokens
WORDS: dict[Kind, str] = {"near tie": "near ties", "drawn": "drawn otherwise", "unknown": "that cannot be judged"}


class Comparison(Struct, frozen=True, kw_only=True):
    """Answers of one kind of sampling. After a difference the rest of an answer does not count.

    Not judged are answers with seeds of engines that promise no more than their distribution: any of them may differ.
    """

    sampling: Sampling
    is_judged: bool = True
    num_answers: int = 0
    num_identical: int = 0
    num_tokens: int = 0  # that were compared
    num_failed: int = 0
    divergences: tuple[Divergence, ...] = ()

    def count(self, kind: Kind) -> int:
        """Return how many first differences are of a kind."""
        return sum(one.kind == kind for one in self.divergences)

    @property
    def defects(self) -> Interval | None:
        """Defects per 10,000 tokens with their exact 95 % interval (Poisson); None if nothing was judged."""
        if not self.num_tokens or not self.is_judged:
            return None
        count, scale = self.count("defect"), PER / self.num_tokens
        low, high = poisson_interval(count)
        return Interval(count * scale, low * scale, high * scale)

    def lines(self) -> list[str]:
        """Format for people: what was compared, and the first defect."""
        failed = [f"{self.num_failed} failed"] if self.num_failed else []
        if not self.num_answers:
            return [", ".join([f"{self.sampling}: nothing was compared", *failed])]
        share = self.num_identical / self.num_answers
        head = f"{self.sampling}: {self.num_identical} of {self.num_answers} answers identical ({share:.1%})"
        if self.defects is None:
            return [", ".join([head, "not judged: the engine promises no tokens for a seed", *failed])]
        counts = [f"{number} {words}" for kind, words in WORDS.items() if (number := self.count(kind))]
        found = self.count("defect")
        rate = f"{self.defects.value:.2f} per {PER:,} tokens ({self.defects.low:.2f}..{self.defects.high:.2f})"
        parts = [f"{self.num_tokens:,} tokens compared", *counts, f"{found or 'no'} defect{'s' * (found > 1)}: {rate}"]
        return [", ".join([head, *parts, *failed]), *self._examples()]

    def _examples(self) -> list[str]:
        """Return a line for the first difference of each kind."""
        lines = []
        for kind in dict.fromkeys(one.kind for one in self.divergences):
            first = next(one for one in self.divergences if one.kind == kind)
            gap = "not among the best" if first.is_wide else "" if first.gap is None else f"{first.gap:.3f} apart"
            seed = "" if first.seed is None else f", seed {first.seed}"
            where = f"{first.prompt}{seed}, {first.unit} {first.at}: {first.other!r} for {first.base!r}"
            lines.append(f"  first {kind}: {where}" + (f", {gap}" if gap else ""))
        return lines


class Losslessness(Struct, frozen=True, kw_only=True):
    """Two arms compared: greedily, and with seeds. `near_tie` is the largest gap of log-probabilities of a near tie."""

    base: str
    other: str
    near_tie: float
    greedy: Comparison
    seeded: Comparison
    ended: str = ""  # why before its time

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        parts = [one for one in (self.greedy, self.seeded) if one.defects is not None]
        found, tokens = sum(one.count("defect") for one in parts), sum(one.num_tokens for one in parts)
        names = f"{self.other} against {self.base}"
        if found:
            return f"{names}: {found} defect{'s' * (found > 1)} in {tokens:,} tokens: not lossless"
        if any(one.count("unknown") for one in parts):
            return f"{names}: answers differ, and the endpoint gives no log-probabilities to judge them by"
        if not tokens:
            return f"{names}: nothing was compared"
        _, most = poisson_interval(0)
        return f"{names}: no defect in {tokens:,} tokens: at most {most * PER / tokens:.2f} per {PER:,} (95 %)"

    def lines(self) -> list[str]:
        """Format for people."""
        tie = f"near tie: at most {self.near_tie:g} between the log-probabilities of the two tokens"
        ended = [f"ended before its time: {self.ended}"] if self.ended else []
        return [self.sentence, *self.greedy.lines(), *self.seeded.lines(), tie, *ended]


class Result(Struct, frozen=True, kw_only=True):
    """Record of a comparison, as --out keeps it."""

    stamp: Stamp
    lossless: Losslessness
