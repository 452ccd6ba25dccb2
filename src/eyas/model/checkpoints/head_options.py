"""A draft head made smaller when it is loaded: fewer tokens to draft from, 8-bit weights.

Neither changes a token of an answer; what they cost is acceptance. What writes the head's cache stays as it is: the
same keys and values with all options.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.kernels.layouts.dense import TILE_ROWS, BlockedMatrix
from eyas.kernels.layouts.fp8 import round_to_fp8
from eyas.kernels.reference.ops import Matrix
from eyas.model.config import Eagle3Config
from eyas.model.weights import Eagle3Weights, Head

__all__ = ["draft_vocabulary", "in_fp8", "keep_tokens", "read_counts"]


def in_fp8(head: Head) -> Head:
    """Return the head with the matrices after attention in e4m3: packed for the kernels, or plain, rounded numbers."""
    weights: Eagle3Weights = head.weights

    def rounded(matrix: Matrix) -> Matrix:
        return matrix.in_fp8() if isinstance(matrix, BlockedMatrix) else round_to_fp8(matrix)

    return replace(
        head,
        weights=replace(
            weights,
            o_HN=rounded(weights.o_HN),
            gate_up_IH=rounded(weights.gate_up_IH),
            down_HI=rounded(weights.down_HI),
            lm_head_VH=rounded(weights.lm_head_VH),
        ),
    )


def keep_tokens(head: Head, size: int, *, counts_V: Tensor | None, always: Iterable[int]) -> Head:
    """Return the head with `size` of its draft ids: `always`, then the most frequent or, without counts, the lowest.

    The head's weights are not packed, `counts_V` and `always` are of the target's vocabulary. Raises UserError.
    """
    config: Eagle3Config = head.config
    weights: Eagle3Weights = head.weights
    known = torch.arange(config.draft_vocab_size) if weights.target_ids_V is None else weights.target_ids_V.cpu()
    if size % TILE_ROWS or not 0 < size <= config.draft_vocab_size:
        raise UserError(
            f"a draft vocabulary of {size} is not possible: it is a multiple of {TILE_ROWS}, and at most the head's "
            f"own {config.draft_vocab_size}"
        )
    counts = torch.zeros(config.vocab_size) if counts_V is None else counts_V
    if len(counts) != config.vocab_size:
        raise UserError(f"token counts are for {len(counts)} ids, the model has {config.vocab_size}")
    wanted = torch.zeros(config.vocab_size, dtype=torch.bool)
    wanted[list(always)] = True
    places = wanted[known].nonzero().flatten()
    if len(places) > size:
        raise UserError(f"a draft vocabulary of {size} has no room for the {len(places)} special tokens")
    kept = draft_vocabulary(counts[known], size, tuple(places.tolist()))
    device = weights.lm_head_VH.device
    return Head(
        replace(config, draft_vocab_size=size),
        replace(weights, lm_head_VH=weights.lm_head_VH[kept.to(device)], target_ids_V=known[kept].to(device)),
    )


def draft_vocabulary(counts_V: Tensor, size: int, always: tuple[int, ...] = ()) -> Tensor:
    """Choose int64 [size], ascending: `always`, then the most frequent ids, lower ids first where counts are equal."""
    counts = counts_V.clone()
    counts[list(always)] = counts.max() + 1
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def read_counts(path: Path, vocab_size: int) -> Tensor:
    """Read fp64 [V] from a JSON object of token counts by id. Raises UserError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        counts = torch.zeros(vocab_size, dtype=torch.float64)
        for token, count in found.items():
            if int(token) not in range(vocab_size):
                raise ValueError(f"there is no token {token}")
            counts[int(token)] = float(count)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is no table of token counts for a vocabulary of {vocab_size}, such as "
            f'{{"11": 1520, "200": 934}}: {" ".join(str(error).split())}'
        ) from error
    return counts
