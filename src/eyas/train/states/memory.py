"""Sizes, by owner and from shapes alone, of what the target needs while a head is trained; allocates nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.kernels.reference.layers.roles import PROMPT_TILE
from eyas.model.config import GptOssConfig
from eyas.model.prompt_memory import chunk_bytes, layer_page_bytes
from eyas.train.states.pages import KERNEL_ROWS, PAGE_SIZE, PLAIN_ROWS, cache_pages

__all__ = ["TargetMemory", "at_once", "check_memory", "longest_that_fits"]

OF_PASS = "target chunk", "target scores"  # of the target, gone before the head's step; on a GPU so are its caches
OF_STEP = "head pass", "loss tiles"


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetMemory:
    """A target on a device: what its memory follows from besides the lengths of documents."""

    config: GptOssConfig
    dtype: torch.dtype  # of matrices
    has_kernels: bool  # whether a GPU's kernels read the weights, which are packed for them
    weight_bytes: int
    expert_cache_bytes: int  # for dequantised experts; 0 where packed ones are read
    num_taps: int

    @property
    def chunk_rows(self) -> int:
        """Rows of a pass of the target."""
        return KERNEL_ROWS if self.has_kernels else PLAIN_ROWS

    def owners(self, *, longest: int, batch_tokens: int = 0, cache_bytes: int = 0) -> dict[str, int]:
        """Return bytes by owner for documents of up to `longest` tokens, alone or packed to `batch_tokens`.

        target weights  as they lie in memory; on a CPU packed experts stay in their files and do not count
        target experts  dequantised ones, once all were asked for
        teacher         the plain lm_head beside the packed one
        target caches   keys and values of one document
        target chunk    activations of one pass
        target scores   plain attention: each tile of rows holds about six fp32 matrices of its scores of all keys
        states          taps and last hidden states of one batch
        states cache    `cache_bytes`, which lie in the host's memory: 0 is asked for where a GPU is planned
        """
        config, size = self.config, self.dtype.itemsize
        width = (self.num_taps + 1) * config.hidden_size
        pages = cache_pages(config, longest=longest, chunk_rows=self.chunk_rows)
        num_sliding = sum(config.layer_is_sliding)
        num_pages = (pages.full + 1) * (config.num_layers - num_sliding) + (pages.sliding + 1) * num_sliding
        return {
            "target weights": self.weight_bytes,
            "target experts": self.expert_cache_bytes,
            "teacher": config.vocab_size * config.hidden_size * size if self.has_kernels else 0,
            "target caches": num_pages * layer_page_bytes(config, PAGE_SIZE, self.dtype),
            "target chunk": chunk_bytes(config, self.chunk_rows, self.dtype, tap_width=width),
            "target scores": 0 if self.has_kernels else 6 * 4 * PROMPT_TILE * config.num_heads * longest,
            "states": max(longest, batch_tokens) * width * size,
            "states cache": cache_bytes,
        }


def at_once(owners: Mapping[str, int], device: torch.device) -> int:
    """Return the bytes in use at once on a device: the target's pass and the head's step take turns."""
    of_pass = OF_PASS if device.type == "cpu" else (*OF_PASS, "target caches")
    in_turn = [sum(owners.get(name, 0) for name in names) for names in (of_pass, OF_STEP)]
    return sum(owners.values()) - min(in_turn)


def longest_that_fits(bytes_at: Callable[[int], int], *, free: int, at_most: int) -> int:
    """Return the most tokens, up to `at_most`, whose `bytes_at`, which must not fall, is within `free`; 0 if none."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bytes_at(middle) <= free else (low, middle - 1)
    return low


def check_memory(
    owners_at: Callable[[int], Mapping[str, int]], *, longest: int, device: torch.device, free: int
) -> None:
    """Raises UserError if documents of `longest` tokens need more than `free` bytes of a device; names what fits.

    `owners_at` gives the bytes by owner for documents of up to that many tokens.
    """
    owners = owners_at(longest)
    needed = at_once(owners, device)
    if needed <= free:
        return
    fits = longest_that_fits(lambda length: at_once(owners_at(length), device), free=free, at_most=longest)
    largest = sorted((owner for owner in owners if owners[owner]), key=lambda owner: -owners[owner])[:3]
    advice = f"documents of up to {fits} tokens fit"
    if not fits:
        advice = "not even the shortest documents fit: make what takes most of it smaller"
    raise UserError(
        f"too little memory: documents of {longest} tokens need {readable(needed)} "
        f"({', '.join(f'{owner} {readable(owners[owner])}' for owner in largest)}), {readable(max(free, 0))} are free; "
        f"{advice}"
    )
