"""Row-invariant linear layers: a row's result does not depend on the other rows.

BLAS libraries pick another summation order for other row counts, so `F.linear` gives different bits for 1 and 2 rows.
Here rows always go through in tiles of one fixed size. Within a tile of 8 or more (a multiple of 4) every position
gives the same bits with the libraries that we measured; `self_test` checks that on the machine at hand.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["linear", "self_test"]


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, *, tile: int | None) -> Tensor:
    """Compute x W^T + b in tiles of `tile` rows; `tile` None is plain `F.linear`, which is not row-invariant."""
    bias = bias_N if bias_N is None or bias_N.dtype == weight_NK.dtype else bias_N.to(weight_NK.dtype)
    num_rows = x_TK.shape[0]
    if tile is None or num_rows == tile:
        return F.linear(x_TK, weight_NK, bias)
    padding = -num_rows % tile
    padded = F.pad(x_TK, (0, 0, 0, padding)) if padding else x_TK
    parts = [F.linear(part, weight_NK, bias) for part in padded.split(tile)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[:num_rows]


def self_test(weight_NK: Tensor, *, tile: int, num_probes: int = 4) -> bool:
    """Whether a row gives the same bits at every position of a tile, alone or among others."""
    generator = torch.Generator().manual_seed(0)
    width = weight_NK.shape[1]
    for _ in range(num_probes):
        crowd = torch.randn(tile, width, generator=generator).to(weight_NK)
        expected = linear(crowd[:1], weight_NK, None, tile=tile)[0]
        for position in range(tile):
            rows = crowd.roll(position, 0)
            if not torch.equal(linear(rows, weight_NK, None, tile=tile)[position], expected):
                return False
    return True
