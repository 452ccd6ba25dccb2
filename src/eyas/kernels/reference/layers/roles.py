"""Operations by the role of a row: prompt rows and generated rows, each in tiles of one fixed size."""

from __future__ import annotations

from eyas.kernels.reference.layers.plain_ops import PlainOps

__all__ = ["PLAIN_OPS", "PROMPT_OPS", "PROMPT_TILE", "ROW_OPS"]

PROMPT_TILE = 64  # absolute grid of prompt rows
ROW_OPS = PlainOps(dense=8, experts=1)
PROMPT_OPS = PlainOps(dense=PROMPT_TILE, experts=16)
PLAIN_OPS = PlainOps(dense=None, experts=None)  # for comparison: not exact
