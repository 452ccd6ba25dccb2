"""Layout of MXFP4 experts for decode and prompt kernels: 16-row tiles whose words lie as matrix instructions want them.

A tile is 16 rows of one expert; its row g (0..7) is matrix row 2 g and its row g + 8 is matrix row 2 g + 1, so gate
and up of one feature, which alternate in the checkpoints, meet in one lane. Per tile and 64 columns there are 32 lanes
of four words: lane 4 g + t holds columns 8 t .. 8 t + 7 of {row g, row g + 8} of the first block of 32 columns, then of
the second. The second block is zero where the number of columns is an odd multiple of 32.

A word holds eight E2M1 codes s ee m, two in each of four pairs p: element 2 p for the low half of a register, element
2 p + 1 for the high half. A code at bits 15, 8..7 and 6 of a bf16 is its value times 2^-126, so with q the word and
M = 0x81C081C0

    pair 0 = q & M        pair 1 = rotr(q, 4) & M        pair 2 = (q << 6) & M
    pair 3 = (rotr(q, 6) & 0x81808180) | ((q << 2) & 0x00400040)

Each is then multiplied by 2^(s - 1), which applies the scale 2^(s - 127) of a block as well. The scales of a lane's
four words are one word w per tile, 64 columns and g: with F = 0x7F807F80, `w & F` is the pair of bf16 factors of rows
g (low half) and g + 8 of the first block, `rotl(w, 8) & F` that of the second. bf16 ends at 2^127: where a stack of
experts has scales above 128, factors are those of s - exponent, and products are to be multiplied by 2^exponent.

The idea of bits that need a mask at most comes from Marlin's FP4 kernel (vLLM, csrc/quantization/gptq_marlin).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["MAX_SCALE", "MIN_SCALE", "PackedExperts", "empty_experts", "pack_experts", "scale_words", "unpack_experts"]

BLOCK = 32
TILE = 16
GROUP_BYTES = 128 << 20  # of blocks that are packed at once, which takes four times as much for a moment
MAX_SCALE = 128  # 2^(s - 1) must be a bf16 number
MIN_SCALE = -5  # 0.5 * 2^(s - 127) must be one: the least is 2^-133
FACTOR_BIAS = 126  # exponent field of 2^(s - 1) is s + 126

# Where the bits s, e1, e0, m of the low-half code of pair p stand in a word; the high half's are 16 bits further.
_PLACES = ((15, 8, 7, 6), (19, 12, 11, 10), (9, 2, 1, 0), (21, 14, 13, 4))


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """MXFP4 matrices [E, N, K] as the module's docstring says. See `empty_experts` for sizes."""

    words: Tensor  # int32 [E, N / 16, ceil(K / 64), 32, 4]
    scales: Tensor  # int32 [E, N / 16, ceil(K / 64), 8]
    num_rows: int  # N
    num_columns: int  # K
    exponent: int = 0  # the matrix is 2^exponent times what is packed

    @property
    def num_experts(self) -> int:
        return self.words.shape[0]

    def put(self, first: int, blocks: Tensor, scales: Tensor) -> None:
        """Pack the experts from `first` on: blocks uint8 [n, N, K/32, 16], scales uint8 [n, N, K/32], on any device.

        Raises ValueError for other shapes and for scale bytes without a bf16 factor.
        """
        if blocks.shape[1:] != (self.num_rows, self.num_columns // BLOCK, 16) or scales.shape != blocks.shape[:3]:
            raise ValueError(
                f"blocks {tuple(blocks.shape)} and scales {tuple(scales.shape)} are not those of "
                f"experts of [{self.num_rows}, {self.num_columns}]"
            )
        least, most = (int(scale) - self.exponent for scale in torch.aminmax(scales))
        if least < MIN_SCALE or most > MAX_SCALE:
            raise ValueError(f"experts have scale bytes that bf16 cannot hold, with exponent {self.exponent}")
        device, own = self.words.device, slice(first, first + len(blocks))
        num_k64 = self.words.shape[2]
        padding = 2 * num_k64 - blocks.shape[2]
        words, scales = blocks.to(device).view(torch.int32), scales.to(device)
        if padding:
            words = torch.nn.functional.pad(words, (0, 0, 0, padding))
            scales = torch.nn.functional.pad(scales, (0, padding))
        # [tile, g, row of the pair, k64, block of the two, t] -> lanes (g, t) of words (block, row)
        tiled = words.view(-1, 8, 2, num_k64, 2, 4).permute(0, 3, 1, 5, 4, 2).contiguous()
        self.words[own] = _permute_bits(tiled.unsqueeze(-1).view(torch.uint8)).view(self.words[own].shape)
        pairs = scales.view(-1, 8, 2, num_k64, 2).permute(4, 2, 0, 3, 1)
        self.scales[own] = scale_words(pairs, self.exponent).view(self.scales[own].shape)


def empty_experts(
    num_experts: int, num_rows: int, num_columns: int, device: torch.device | str, exponent: int = 0
) -> PackedExperts:
    """Uninitialised storage for [num_experts, num_rows, num_columns]; `put` fills it.

    Raises ValueError unless rows are a multiple of 16 and columns of 32.
    """
    if num_rows % TILE or num_columns % BLOCK:
        raise ValueError(f"experts of [{num_rows}, {num_columns}]: rows must be a multiple of 16, columns of 32")
    shape = (num_experts, num_rows // TILE, -(-num_columns // (2 * BLOCK)))
    words = torch.empty(*shape, 32, 4, dtype=torch.int32, device=device)
    scales = torch.empty(*shape, 8, dtype=torch.int32, device=device)
    return PackedExperts(words, scales, num_rows, num_columns, exponent)


def pack_experts(blocks: Tensor, scales: Tensor) -> PackedExperts:
    """Pack blocks uint8 [E, N, K/32, 16] (low nibble first) and scales uint8 [E, N, K/32] where they are.

    Raises ValueError for shapes that have no packed form and for scale bytes too far apart, or 255, which is NaN.
    """
    num_experts, num_rows, num_blocks = scales.shape
    highest = int(scales.max())
    if highest == 255:
        raise ValueError("a scale byte is 255, which is NaN")
    exponent = max(0, highest - MAX_SCALE)
    packed = empty_experts(num_experts, num_rows, num_blocks * BLOCK, blocks.device, exponent)
    at_once = max(1, GROUP_BYTES * num_experts // max(1, blocks.nbytes))
    for first in range(0, num_experts, at_once):
        packed.put(first, blocks[first : first + at_once], scales[first : first + at_once])
    return packed


def scale_words(scales: Tensor, exponent: int = 0) -> Tensor:
    """Return int32 [...] of scale bytes [2, 2, ...]: by block of 32 columns, and by row of the pair g, g + 8."""
    factors = scales.int() + (FACTOR_BIAS - exponent)
    blocks: Tensor = factors[:, 0] << 7 | factors[:, 1] << 23
    return blocks[0] | _rotate_right_8(blocks[1])


def unpack_experts(packed: PackedExperts) -> tuple[Tensor, Tensor]:
    """The blocks and scales that `pack_experts` was given."""
    num_experts, num_tiles, num_k64 = packed.words.shape[:3]
    num_blocks = packed.num_columns // BLOCK
    words = packed.words.contiguous().view(torch.uint8).view(-1, num_k64, 8, 4, 2, 2, 4)
    blocks = _permute_bits(words, inverse=True).view(torch.uint8).view(words.shape).permute(0, 2, 5, 1, 4, 3, 6)
    halves = torch.stack((packed.scales, _rotate_left_8(packed.scales)), dim=-1)  # [E, tile, k64, g, block]
    factors = torch.stack((halves >> 7 & 0xFF, halves >> 23 & 0xFF), dim=-1)  # [..., row of the pair]
    scales = (factors - FACTOR_BIAS + packed.exponent).to(torch.uint8).permute(0, 1, 3, 5, 2, 4)
    return (
        blocks.reshape(num_experts, num_tiles * TILE, 2 * num_k64, 16)[:, :, :num_blocks].contiguous(),
        scales.reshape(num_experts, num_tiles * TILE, 2 * num_k64)[:, :, :num_blocks].contiguous(),
    )


def _rotate_right_8(words: Tensor) -> Tensor:
    return words >> 8 & 0x00FFFFFF | words << 24


def _rotate_left_8(words: Tensor) -> Tensor:
    return words << 8 | words >> 24 & 0xFF


def _destinations() -> list[int]:
    """Map bit i of a checkpoint's 32-bit word to its place: nibble n is element n, low element of pair n // 2 first."""
    places = []
    for nibble in range(8):
        sign, high, low, mantissa = _PLACES[nibble // 2]
        places += [(place + 16 * (nibble % 2)) % 32 for place in (mantissa, low, high, sign)]
    return places


@functools.cache
def _tables(inverse: bool, device: torch.device) -> Tensor:
    """Return int32 [4, 256]: what byte j of a word contributes to the permuted word."""
    places: Sequence[int] = _destinations()
    if inverse:
        places = [places.index(bit) for bit in range(32)]
    byte = torch.arange(256)
    tables = torch.zeros(4, 256, dtype=torch.int64)
    for bit, place in enumerate(places):
        tables[bit // 8] |= (byte >> bit % 8 & 1) << place
    return tables.to(torch.int32).to(device)  # wraps: bit 31 is the sign


def _permute_bits(words: Tensor, *, inverse: bool = False) -> Tensor:
    """Permute the bits of words given as uint8 [..., 4]; return int32 [...]."""
    tables = _tables(inverse, words.device)
    flat = words.reshape(-1, 4)
    out = tables[0].index_select(0, flat[:, 0].int())
    for j in range(1, 4):
        out |= tables[j].index_select(0, flat[:, j].int())
    return out.view(words.shape[:-1])
