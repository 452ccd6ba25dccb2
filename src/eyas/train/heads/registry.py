"""The kinds of trainable heads, by the names of `model/checkpoints/head_kinds.py`. A new kind is a file and a line."""

from __future__ import annotations

from eyas.base.errors import UserError, nearest
from eyas.train.heads.eagle3_making import EAGLE3_MAKING
from eyas.train.heads.making import HeadMaking

__all__ = ["HEADS", "find_making"]

HEADS: dict[str, HeadMaking] = {"eagle3": EAGLE3_MAKING}


def find_making(kind: str) -> HeadMaking:
    """Return how heads of this kind are made. Raises UserError for a kind that cannot be trained."""
    if kind not in HEADS:
        raise UserError(f"head.kind: no kind '{kind}' can be trained{nearest(kind, HEADS) or ': ' + ', '.join(HEADS)}")
    return HEADS[kind]
