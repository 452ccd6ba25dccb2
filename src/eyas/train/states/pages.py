"""Counts the pages of keys and values that a target needs to read documents one after the other.

Full layers keep a whole document; sliding layers keep a ring of pages that holds a window and a chunk, so a long
document needs little memory.
"""

from __future__ import annotations

from typing import NamedTuple

from eyas.kernels.reference.layers.roles import PROMPT_TILE
from eyas.model.config import GptOssConfig

__all__ = ["KERNEL_ROWS", "PAGE_SIZE", "PLAIN_ROWS", "CachePages", "cache_pages", "whole_tiles"]

PAGE_SIZE = 16  # as in the engine
PLAIN_ROWS, KERNEL_ROWS = 768, 8192  # of a pass: on a CPU more leave its caches, on a GPU fewer leave it idle


class CachePages(NamedTuple):
    """Numbers of pages of each group, page 0 not counted."""

    full: int
    sliding: int


def cache_pages(config: GptOssConfig, *, longest: int, chunk_rows: int) -> CachePages:
    """Return the pages for one document of `longest` tokens, or for short ones that fill a chunk together.

    Kernels read whole tiles of rows, and the keys of rows that are not there: what is masked may not be NaN.

    A chunk begins at a multiple of the page size and sees the window before it, so the ring holds what a pass reads and
    what it writes.
    """
    chunk = chunk_rows // PAGE_SIZE
    full = max(whole_tiles(longest) // PAGE_SIZE, chunk)
    return CachePages(full, min(full, chunk + -(-config.sliding_window // PAGE_SIZE)))


def whole_tiles(length: int) -> int:
    """Return the rows of the whole tiles that hold `length` rows."""
    return -(-length // PROMPT_TILE) * PROMPT_TILE
