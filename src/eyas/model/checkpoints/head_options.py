"""Ways to make a draft head smaller when it is loaded, for its kind to use: fewer tokens to draft from, 8-bit matrices.

Neither changes a token of an answer; what they cost is acceptance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.kernels.layouts.dense import TILE_ROWS, BlockedMatrix
from eyas.kernels.layouts.fp8 import round_to_fp8
from eyas.kernels.reference.layers.ops import Matrix

__all__ = ["draft_vocabulary", "kept_places", "read_counts", "rounded_to_fp8"]


def rounded_to_fp8(matrix: Matrix) -> Matrix:
    """Return a matrix in e4m3: packed for the kernels, or plain, rounded numbers."""
    return matrix.in_fp8() if isinstance(matrix, BlockedMatrix) else round_to_fp8(matrix)


def kept_places(
    known_V: Tensor, size: int, *, vocab_size: int, counts_V: Tensor | None, always: Iterable[int]
) -> Tensor:
    """Choose `size` places in the draft vocabulary, whose target ids are `known_V`: int64 [size], ascending.

    Kept are `always`, then the most frequent tokens or, without counts, the lowest ids; `counts_V` and `always` are of
    the target's vocabulary. Raises UserError.
    """
    if size % TILE_ROWS or not 0 < size <= len(known_V):
        raise UserError(
            f"a draft vocabulary of {size} is not possible: it is a multiple of {TILE_ROWS}, and at most the head's "
            f"own {len(known_V)}"
        )
    counts = torch.zeros(vocab_size) if counts_V is None else counts_V
    if len(counts) != vocab_size:
        raise UserError(f"token counts are for {len(counts)} ids, the model has {vocab_size}")
    wanted = torch.zeros(vocab_size, dtype=torch.bool)
    wanted[list(always)] = True
    places = wanted[known_V].nonzero().flatten()
    if len(places) > size:
        raise UserError(f"a draft vocabulary of {size} has no room for the {len(places)} special tokens")
    return draft_vocabulary(counts[known_V], size, tuple(places.tolist()))


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
