"""Host memory that only grows, up to a budget: in large blocks that a GPU copies from directly, or piece by piece.

Memory that a GPU reads must be pinned. torch pins blocks of powers of two, so that small pieces of their own could take
twice their size: pieces share blocks instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["HostMemory"]

BLOCK = 256 << 20  # bytes
ALIGNMENT = 64


class HostMemory:
    """Pieces of host memory of which none is given back; `used_bytes` are those of the blocks."""

    def __init__(self, budget_bytes: int, *, pinned: bool, block_bytes: int = BLOCK) -> None:
        """`pinned` memory comes in blocks of `block_bytes`, a power of two, and of smaller powers where these end."""
        self._budget, self._pinned, self._block_bytes = budget_bytes, pinned, block_bytes
        self._block = torch.empty(0, dtype=torch.uint8)
        self._filled = 0
        self.used_bytes = 0

    def copies(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """Return copies of contiguous tensors, on the same stream as later ones; None if there is no room for all."""
        sizes = [x.nbytes for x in tensors]
        if not self._pinned:
            if self.used_bytes + sum(sizes) > self._budget:
                return None
            self.used_bytes += sum(sizes)
            return [x.to("cpu", copy=True, memory_format=torch.contiguous_format) for x in tensors]
        places = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        if not self._has_room(sum(places)):
            return None
        found = []
        for x, size, place in zip(tensors, sizes, places, strict=True):
            piece = self._block[self._filled : self._filled + size].view(x.dtype).view(x.shape)
            found.append(piece.copy_(x, non_blocking=True))
            self._filled += place
        return found

    def _has_room(self, size: int) -> bool:
        """Whether the block has room for `size` bytes; a new one is made if the budget allows."""
        if self._filled + size <= len(self._block):
            return True
        left = self._budget - self.used_bytes
        block = min(self._block_bytes, 1 << (left.bit_length() - 1)) if left > 0 else 0
        if size > block:
            return False  # also what is larger than a block: only short documents are kept
        self._block, self._filled = self._new_block(block), 0
        self.used_bytes += block
        return True

    def _new_block(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
