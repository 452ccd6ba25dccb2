"""Sums over the rounds of many batches, from which an evaluation is made; sums of several processes add up.

Shape letters: B schemes (readings times draft lengths), J depths, T generated tokens, D documents, G groups, S samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from eyas.train.evaluation.chances import Chances
from eyas.train.evaluation.results import READINGS, Acceptance, Counts, Evaluation, Reading
from eyas.train.evaluation.rounds import Floats, Integers, Text, expected_starts, prefix_chances
from eyas.train.types import Batch, Segment

__all__ = ["Tally"]

_BOUNDS = tuple(1024 * 4**i for i in range(6))  # tokens of context, the last one of each bucket
_BUCKETS = ("0-1K", "1-4K", "4-16K", "16-64K", "64-256K", "256K-1M", "over 1M")
_SEGMENTS = tuple(segment.name.lower() for segment in Segment)
_NUM_SAMPLES = 1000  # of the bootstrap
_SAMPLES_AT_ONCE = 50  # bounds memory: numbers for each document


class _Sums:
    """Rounds and tokens [B, G] by group."""

    def __init__(self, num_schemes: int, num_groups: int) -> None:
        self.rounds_BG = np.zeros((num_schemes, num_groups))
        self.tokens_BG = np.zeros((num_schemes, num_groups))

    def add(self, group_T: Integers, rounds_BT: Floats, tokens_BT: Floats) -> None:
        for scheme, (rounds_T, tokens_T) in enumerate(zip(rounds_BT, tokens_BT, strict=True)):
            self.rounds_BG[scheme] += np.bincount(group_T, rounds_T, minlength=self.rounds_BG.shape[1])
            self.tokens_BG[scheme] += np.bincount(group_T, tokens_T, minlength=self.rounds_BG.shape[1])

    def merge(self, other: _Sums) -> None:
        self.rounds_BG += other.rounds_BG
        self.tokens_BG += other.tokens_BG

    def counts(self, scheme: int, names: tuple[str, ...]) -> dict[str, Counts]:
        """Return the groups that have rounds."""
        pairs = zip(names, self.rounds_BG[scheme].tolist(), self.tokens_BG[scheme].tolist(), strict=True)
        return {name: Counts(rounds=rounds, tokens=tokens) for name, rounds, tokens in pairs if rounds}


@dataclass(slots=True)
class Tally:
    """Sums over rounds. `num_depths` is that of the head, `temperature` None where it is not evaluated at one."""

    num_depths: int
    temperature: float | None
    _num_tokens: int = 0
    _num_in_vocabulary: int = 0
    _all: _Sums = field(init=False)
    _contexts: _Sums = field(init=False)
    _segments: _Sums = field(init=False)
    _reached_BJ: Floats = field(init=False)
    _accepted_BJ: Floats = field(init=False)
    _documents: list[_Sums] = field(default_factory=list)  # a batch each, over content

    def __post_init__(self) -> None:
        num_schemes = len(self._readings) * self.num_depths
        self._all = _Sums(num_schemes, 1)
        self._contexts, self._segments = _Sums(num_schemes, len(_BUCKETS)), _Sums(num_schemes, len(_SEGMENTS))
        self._reached_BJ, self._accepted_BJ = np.zeros((2, num_schemes, self.num_depths))

    @property
    def _readings(self) -> tuple[Reading, ...]:
        return READINGS if self.temperature is not None else READINGS[:2]

    def add(self, batch: Batch, chances: Chances, target_ids_V: torch.Tensor) -> None:
        """Add the documents of a batch."""
        text = Text.of(batch)
        each = [found[:, text.at_T] for found in chances if found is not None]
        # A scheme with fewer drafts has no chance at the depths behind them.
        has_depth_KJ1 = np.tri(self.num_depths)[:, :, None]
        prefix_BIT = prefix_chances(np.concatenate([found[None] * has_depth_KJ1 for found in each]))
        starts_BT = expected_starts(prefix_BIT, text)
        size_I1 = np.arange(1, self.num_depths + 2)[:, None]

        committed_BT = np.einsum("bit,it->bt", prefix_BIT[:, :-1], size_I1 <= text.left_T)
        rounds_BT = starts_BT * (text.left_T > 0)
        self._all.add(np.zeros_like(text.at_T), rounds_BT, rounds_BT * committed_BT)

        is_counted_IT = (size_I1 <= text.content_T).astype(np.float64)
        rounds_BT = starts_BT * (text.content_T > 0)
        tokens_BT = starts_BT * np.einsum("bit,it->bt", prefix_BIT[:, :-1], is_counted_IT)
        by_document = _Sums(len(rounds_BT), len(batch.starts) - 1)
        by_document.add(text.documents_T, rounds_BT, tokens_BT)
        self._documents.append(by_document)
        self._contexts.add(np.searchsorted(_BOUNDS, text.context_T), rounds_BT, tokens_BT)
        self._segments.add(np.append(text.segments_T, 0)[1:], rounds_BT, tokens_BT)
        counted_IT = is_counted_IT[:-1]
        self._reached_BJ += np.einsum("bt,bit,it->bi", rounds_BT, prefix_BIT[:, :-2], counted_IT, optimize=True)
        self._accepted_BJ += np.einsum("bt,bit,it->bi", rounds_BT, prefix_BIT[:, 1:-1], counted_IT, optimize=True)

        self._num_tokens += len(text.at_T)
        self._num_in_vocabulary += int(torch.isin(batch.ids_T[batch.runs_T >= 0], target_ids_V).sum())

    def merge(self, other: Tally) -> None:
        """Add the sums of another tally of the same head, over other documents."""
        self._num_tokens += other._num_tokens
        self._num_in_vocabulary += other._num_in_vocabulary
        self._all.merge(other._all)
        self._contexts.merge(other._contexts)
        self._segments.merge(other._segments)
        self._reached_BJ += other._reached_BJ
        self._accepted_BJ += other._accepted_BJ
        self._documents += other._documents

    def by_document(self, reading: Reading, draft_tokens: int) -> tuple[Floats, Floats]:
        """Return expected rounds [D] and the tokens [D] that they commit, over content, in the order of documents."""
        scheme = self._readings.index(reading) * self.num_depths + draft_tokens - 1
        rounds_BD, tokens_BD = self._by_document()
        return rounds_BD[scheme], tokens_BD[scheme]

    def _by_document(self) -> tuple[Floats, Floats]:
        if not self._documents:
            return np.zeros((len(self._reached_BJ), 0)), np.zeros((len(self._reached_BJ), 0))
        return (
            np.concatenate([sums.rounds_BG for sums in self._documents], axis=1),
            np.concatenate([sums.tokens_BG for sums in self._documents], axis=1),
        )

    def result(self) -> Evaluation:
        rounds_BD, tokens_BD = self._by_document()
        intervals = _intervals(rounds_BD, tokens_BD)
        found: dict[Reading, tuple[Acceptance, ...]] = {}
        for number, reading in enumerate(self._readings):
            first = number * self.num_depths
            found[reading] = tuple(
                Acceptance(
                    draft_tokens=drafts,
                    content=Counts(rounds=float(rounds_BD[scheme].sum()), tokens=float(tokens_BD[scheme].sum())),
                    interval=intervals[scheme],
                    all_tokens=Counts(
                        rounds=float(self._all.rounds_BG[scheme, 0]), tokens=float(self._all.tokens_BG[scheme, 0])
                    ),
                    reached=tuple(self._reached_BJ[scheme, :drafts].tolist()),
                    accepted=tuple(self._accepted_BJ[scheme, :drafts].tolist()),
                    by_context=self._contexts.counts(scheme, _BUCKETS),
                    by_segment=self._segments.counts(scheme, _SEGMENTS),
                )
                for drafts, scheme in enumerate(range(first, first + self.num_depths), 1)
            )
        return Evaluation(
            num_documents=rounds_BD.shape[1],
            num_tokens=self._num_tokens,
            num_in_vocabulary=self._num_in_vocabulary,
            temperature=self.temperature,
            acceptance=found,
        )


def _intervals(rounds_BD: Floats, tokens_BD: Floats) -> list[tuple[float, float] | None]:
    """Return the 95 % interval of tokens over rounds of each scheme: documents with rounds, drawn with replacement."""
    has_rounds = (rounds_BD > 0).any(axis=0)
    rounds_BD, tokens_BD = rounds_BD[:, has_rounds], tokens_BD[:, has_rounds]
    num_documents = int(has_rounds.sum())
    if not num_documents:
        return [None] * len(rounds_BD)
    generator, shares_D = np.random.Generator(np.random.PCG64(0)), np.full(num_documents, 1 / num_documents)
    samples = []
    for _ in range(_NUM_SAMPLES // _SAMPLES_AT_ONCE):
        times_SD = generator.multinomial(num_documents, shares_D, size=_SAMPLES_AT_ONCE)
        drawn_SB = times_SD @ rounds_BD.T
        samples.append((times_SD @ tokens_BD.T) / np.where(drawn_SB > 0, drawn_SB, np.inf))
    low_B, high_B = np.percentile(np.concatenate(samples), (2.5, 97.5), axis=0)
    pairs = zip(low_B.tolist(), high_B.tolist(), rounds_BD.sum(axis=1).tolist(), strict=True)
    return [(low, high) if rounds else None for low, high, rounds in pairs]
