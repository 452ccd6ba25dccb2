"""Packs finished documents into rows, padded at their ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from data import IGNORED, Shard

__all__ = ["pack"]


def pack(pieces: Sequence[tuple[list[int], list[int]]], length: int, pad: int) -> Shard:
    """Rows of `length` tokens from (ids, codes) documents, first fit; the rest of a row is ignored padding."""
    rows: list[list[tuple[list[int], list[int]]]] = []
    room: list[int] = []
    for piece in pieces:
        size = len(piece[0])
        if size > length:
            continue
        place = next((i for i in range(max(0, len(rows) - 20), len(rows)) if room[i] >= size), None)
        if place is None:
            rows.append([])
            room.append(length)
            place = -1
        rows[place].append(piece)
        room[place] -= size
    ids = np.full((len(rows), length), pad, np.uint16)
    codes, docs = np.full_like(ids, IGNORED, np.uint8), np.zeros_like(ids)
    for i, row in enumerate(rows):
        at = 0
        for number, (piece, code) in enumerate(row):
            end = at + len(piece)
            ids[i, at:end], codes[i, at:end], docs[i, at:end] = piece, code, number
            at = end
        docs[i, at:] = len(row)
    return Shard(ids, codes, docs)
