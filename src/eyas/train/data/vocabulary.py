"""Chooses the draft vocabulary by the tokens that are supervised, and says how much of them it covers.

Shape letters: S segments, V target and Vd draft vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eyas.base.errors import UserError
from eyas.base.tokens.tokenizer import TextCodec
from eyas.model.checkpoints.head_options import draft_vocabulary
from eyas.train.types import Document, Segment

__all__ = ["Counts", "choose_vocabulary", "count_supervised", "coverage", "forced_ids", "write_counts"]


class Counts:
    """Counts the supervised tokens by segment and id."""

    def __init__(self, vocab_size: int) -> None:
        self.by_segment_SV = np.zeros((len(Segment), vocab_size), dtype=np.int64)  # GIVEN has none

    def add(self, document: Document) -> None:
        """Raises UserError for a token that the target's vocabulary lacks."""
        vocab_size = self.by_segment_SV.shape[1]
        is_taught = document.runs_T >= 0
        ids, segments = document.ids_T[is_taught], document.segments_T[is_taught].astype(np.int64)
        if len(ids) and ids.max() >= vocab_size:
            raise UserError(f"{document.source} has the token {ids.max()}, and the target's vocabulary {vocab_size}")
        np.add.at(self.by_segment_SV.reshape(-1), segments * vocab_size + ids, 1)


def count_supervised(documents: Iterable[Document], vocab_size: int) -> NDArray[np.int64]:
    """Return the supervised tokens of all documents by segment and id: int64 [S, V]. Raises UserError."""
    counts = Counts(vocab_size)
    for document in documents:
        counts.add(document)
    return counts.by_segment_SV


def forced_ids(codec: TextCodec, eos_ids: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """Return the ids that every draft vocabulary has: all special tokens and those that end an answer, ascending."""
    return tuple(sorted({token for token in (*codec.special.values(), *eos_ids) if token < vocab_size}))


def choose_vocabulary(counts_SV: NDArray[np.int64], size: int, always: tuple[int, ...]) -> Tensor:
    """Return int64 [size], ascending: `always`, then the most frequent tokens. Raises UserError."""
    vocab_size = counts_SV.shape[1]
    if not len(always) <= size <= vocab_size:
        raise UserError(
            f"a draft vocabulary of {size} is not possible: {len(always)} control tokens are in any, and the target "
            f"has {vocab_size} tokens"
        )
    return draft_vocabulary(torch.from_numpy(counts_SV.sum(0)), size, always)


def coverage(counts_SV: NDArray[np.int64], vocabulary_V: Tensor) -> dict[Segment | None, float]:
    """Return the share of supervised tokens that are in the draft vocabulary, by segment that has any; None: of all."""
    inside_S, all_S = counts_SV[:, vocabulary_V.numpy()].sum(1), counts_SV.sum(1)
    shares: dict[Segment | None, float] = {s: float(inside_S[s] / all_S[s]) for s in Segment if all_S[s]}
    if all_S.any():
        shares[None] = float(inside_S.sum() / all_S.sum())
    return shares


def write_counts(path: Path, counts_SV: NDArray[np.int64]) -> None:
    """Write the counts of supervised tokens as JSON, `{"11": 1520, ...}`: the form that `--draft-counts` reads.

    The file is there whole or not at all. Raises UserError.
    """
    counts_V = counts_SV.sum(0)
    text = json.dumps({str(token): int(counts_V[token]) for token in np.flatnonzero(counts_V)})
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
