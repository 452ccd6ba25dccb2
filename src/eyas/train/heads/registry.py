"""The kinds of trainable heads, by the names of `model/checkpoints/head_kinds.py`. A new kind is a file and a line."""

from __future__ import annotations

from eyas.train.heads.base import TrainableHead
from eyas.train.heads.eagle3 import Eagle3TrainableHead

__all__ = ["HEADS"]

HEADS: dict[str, type[TrainableHead]] = {"eagle3": Eagle3TrainableHead}
