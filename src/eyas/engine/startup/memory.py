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
]

GPU_RESERVE = 3 << 29


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


def kv_budget(device: torch.device, *, prompt_bytes: int, logit_bytes: int) -> int:
    """Return the part of free memory for keys and values.

    On a CPU half is left for activations and other programs. On a GPU memory is left for a prompt chunk, for
    `logit_bytes`, the logits of one round of each shape (rounds with masks keep theirs), and for kernels, workspaces,
    other graphs and the allocator's slack, 0.7 GB on an H200. A GPU that shares the host's memory leaves a tenth to
    other programs.
    """
    room = available_bytes(device)
    if device.type == "cpu":
        return room // 2
    if shares_memory(device):
        room -= room // 10
    return room - prompt_bytes - logit_bytes - GPU_RESERVE


def page_bytes(target: GptOssConfig, needs: DrafterNeeds, page_size: int, dtype: torch.dtype) -> PageBytes:
    """Return the bytes of a page: keys and values of target and drafter, and the taps that a page keeps."""
    layer = layer_page_bytes(target, page_size, dtype)
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
