"""Sizes of memory by owner, and how many pages fit. In bytes, from shapes alone; allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.engine.drafters.base import DrafterNeeds
from eyas.model.config import GptOssConfig
from eyas.model.devices import available_bytes, shares_memory
from eyas.model.prompt_memory import layer_page_bytes

__all__ = [
    "GPU_RESERVE",
    "PageBytes",
    "PageCounts",
    "kv_budget",
    "page_bytes",
    "page_counts",
    "screen_pays",
]

GPU_RESERVE = 3 << 29
LEAST_SCREENED = 256 << 20  # bytes of an lm_head: a screen's launches cost as much as reading 100 MB
SCREEN_ROOM = 10  # times the bytes of a screen are left for keys and values


@dataclass(frozen=True, kw_only=True, slots=True)
class PageBytes:
    """Bytes of one page in each group, over all layers of the group."""

    full: int
    sliding: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PageCounts:
    """Numbers of pages, page 0 not counted."""

    full: int
    sliding: int


def kv_budget(device: torch.device, *, prompt_bytes: int, round_bytes: int) -> int:
    """Return the part of free memory for keys and values.

    On a CPU half is left for activations and other programs. On a GPU memory is left for a prompt chunk, for
    `round_bytes`, what the target leaves of the largest round, and for kernels, workspaces, other graphs and the
    allocator's slack, 0.7 GB on an H200. A GPU that shares the host's memory leaves a tenth to other programs.
    """
    room = available_bytes(device)
    if device.type == "cpu":
        return room // 2
    if shares_memory(device):
        room -= room // 10
    return room - prompt_bytes - round_bytes - GPU_RESERVE


def screen_pays(lm_head_bytes: int, screen_bytes: int, kv_bytes: int) -> bool:
    """Whether an lm_head is worth a screen, and `kv_bytes` for keys and values, which it takes of, leave it room."""
    return lm_head_bytes >= LEAST_SCREENED and SCREEN_ROOM * screen_bytes <= kv_bytes


def page_bytes(
    target: GptOssConfig, needs: DrafterNeeds, page_size: int, dtype: torch.dtype, *, in_fp8: bool = False
) -> PageBytes:
    """Return the bytes of a page: keys and values of target and drafter, and the taps that a page keeps.

    `in_fp8` are the target's alone.
    """
    layer = layer_page_bytes(target, page_size, dtype, in_fp8=in_fp8)
    num_sliding = sum(target.layer_is_sliding)
    of_drafter = page_size * sum(cache.width for cache in needs.caches) + needs.page_tap_width
    full = layer * (target.num_layers - num_sliding) + of_drafter * dtype.itemsize
    return PageBytes(full=full, sliding=layer * num_sliding)


def page_counts(
    size: PageBytes,
    *,
    budget: int,
    page_size: int,
    context: int,
    num_sequences: int,
    sliding_pages: int,
    chunk_tokens: int,
) -> PageCounts:
    """Return pages for `num_sequences` of `context` tokens, or as many as `budget` bytes hold.

    A sequence holds at most `sliding_pages` at once; the prompts of a step need those of `chunk_tokens` in addition.
    The sliding group gets twice that for the sequences that the full group holds, so that prefixes can be shared.
    Raises UserError if not one sequence fits.
    """
    per_sequence, chunk_pages = -(-context // page_size), -(-chunk_tokens // page_size)

    def counts(full: int) -> PageCounts:
        in_use = -(-sliding_pages * full // per_sequence) + chunk_pages
        return PageCounts(full=full, sliding=min(full, 2 * in_use))

    def cost(pages: PageCounts) -> int:
        return (pages.full + 1) * size.full + (pages.sliding + 1) * size.sliding

    low, high = per_sequence, per_sequence * num_sequences
    least = cost(counts(low))
    if least > budget:
        raise UserError(
            f"too little memory: one conversation of {context} tokens needs {readable(least)} of KV cache, "
            f"{readable(max(budget, 0))} are left; ask for a shorter --context"
        )
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(counts(middle)) <= budget else (low, middle - 1)
    return counts(low)
