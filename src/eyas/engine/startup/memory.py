"""Sizes of memory by owner, and how many pages fit. In bytes, from shapes alone; allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.engine.drafters.base import DrafterNeeds
from eyas.model.config import GptOssConfig

__all__ = [
    "GPU_RESERVE",
    "PageBytes",
    "PageCounts",
    "available_bytes",
    "chunk_bytes",
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


def available_bytes(device: torch.device) -> int:
    """Return the free memory of the device; on a CPU MemAvailable: what can be had without swapping.

    The driver of a GPU that shares the host's memory does not count reclaimable page cache as free, so the larger of
    both is returned there.
    """
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
        return max(free, available_bytes(torch.device("cpu"))) if _shares_memory(device) else free
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise UserError("cannot read the free memory from /proc/meminfo; eyas runs on Linux")


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
    if _shares_memory(device):
        room -= room // 10
    return room - prompt_bytes - logit_bytes - GPU_RESERVE


def _shares_memory(device: torch.device) -> bool:
    return bool(torch.cuda.get_device_properties(device).is_integrated)


def page_bytes(target: GptOssConfig, needs: DrafterNeeds, page_size: int, dtype: torch.dtype) -> PageBytes:
    """Return the bytes of a page: keys and values of target and drafter, and the taps that a page keeps."""
    layer = 2 * page_size * target.num_kv_heads * target.head_dim * dtype.itemsize
    num_sliding = sum(target.layer_is_sliding)
    of_drafter = page_size * sum(cache.width for cache in needs.caches) + needs.page_tap_width
    full = layer * (target.num_layers - num_sliding) + of_drafter * dtype.itemsize
    return PageBytes(full=full, sliding=layer * num_sliding)


def chunk_bytes(target: GptOssConfig, needs: DrafterNeeds, num_rows: int, dtype: torch.dtype) -> int:
    """Return the bytes in use while `num_rows` of a prompt are computed: matrix inputs in `dtype`, residuals in fp32.

    The peak is at the end of a layer's experts or of the head's gated matrices; the allocator's blocks do not fit it
    exactly, so half as much again is counted. Measured on an H200 for 8,192 rows of gpt-oss-120b with
    its head: tensors of 1.16 GB, blocks of 2.1 GB at worst.
    """
    size, attended = dtype.itemsize, target.num_heads * target.head_dim
    hidden, inner = target.hidden_size, target.experts_per_token * (target.intermediate_size + target.hidden_size)
    of_target = (8 + 3 * size) * hidden + size * (inner + attended)
    of_target += 4 * needs.tap_width
    return num_rows * max(of_target, needs.prompt_row_bytes) * 3 // 2


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
