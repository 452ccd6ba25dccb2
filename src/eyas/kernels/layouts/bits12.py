"""A bf16 matrix in 12 bits a weight, without loss: the low byte, the sign, and 3 bits of the exponent.

Exponents of trained weights take few of 256 values, which entropy coders use (DFloat11, Zhang et al., 2025). Here the
code has one length, so that the place of a tile follows from its number, and a byte permutation restores two weights.
The low byte of a bf16 is the exponent's last bit and the mantissa. The high byte is the sign and the rest of the
exponent: 3 bits, to which a number is added that 32 weights of a row share. So they span up to 16 binades.

A tile of 16 rows by 32 columns; lane 4 g + t of a warp has columns 8 t .. 8 t + 7 of rows g and g + 8:

    512 bytes  low bytes, 16 of a lane: row g, then row g + 8
    256        two words of a lane, for row g and row g + 8. Byte i has the 3 bits of column i at bits 0 .. 2 and its
               sign at bit 7; the word rotated right by 4 has those of columns 4 .. 7 there
    16         byte 0: the largest of the rows' numbers; from byte 2 three marks of 16 bits; from byte 8 on 4 bits a
               row, by how much its number is less

A mark is a weight below its row's 16 binades: lane (5 bits), place in the lane (4), and what its high byte is less (7).
A tile with more than three of them, bit 7 of byte 0 says so, is read from the plain matrix, which stays in memory for
launches of more rows anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["TILE_BYTES", "to_12_bits"]

TILE_BYTES = 784
WINDOW = 8  # values of the high byte's exponent bits: two binades each
MOST_LESS = 15  # of a row's number than its tile's largest
MARKS = 3
LEFT_PLAIN = 0x80
MAX_PLAIN_SHARE = 1 / 64  # of tiles: each costs its bytes twice, and a wait
CHUNK_TILES = 1 << 13  # packed at once: 4 million weights, about 100 MB of intermediate values


def to_12_bits(data: Tensor) -> Tensor | None:
    """Return tiles [N / 16, K / 32, 784] uint8 of blocked bf16 `data` [N / 16, K / 32, 16, 32].

    None where more than 1 in 64 tiles would have to be read from `data`: then 12 bits do not pay.
    """
    tiles = data.flatten(0, 1)
    packed = torch.empty(len(tiles), TILE_BYTES, dtype=torch.uint8, device=data.device)
    plain = torch.zeros((), dtype=torch.int64, device=data.device)
    for chunk, out in zip(tiles.split(CHUNK_TILES), packed.split(CHUNK_TILES), strict=True):
        plain += _pack(chunk, out)
    if plain.item() > MAX_PLAIN_SHARE * len(tiles):
        return None
    return packed.view(*data.shape[:2], TILE_BYTES)


def _pack(tiles: Tensor, out: Tensor) -> Tensor:
    """Fill `out` [tiles, 784]; return how many tiles are left plain."""
    bits = tiles.contiguous().view(torch.int16).int() & 0xFFFF
    exponents = bits >> 8 & 0x7F
    wanted = (exponents.amax(-1) - (WINDOW - 1)).clamp(min=0)  # [tiles, 16]
    largest = wanted.amax(-1, keepdim=True)
    less = (largest - wanted).clamp(max=MOST_LESS)
    codes = exponents - (largest - less).unsqueeze(-1)

    lanes = _by_lane(bits)
    signs, of_lanes = lanes >> 15, _by_lane(codes)
    first, second = of_lanes.clamp(min=0).unbind(-2)  # columns 0 .. 3 and 4 .. 7 of a lane
    first_sign, second_sign = signs.unbind(-2)
    words = first | first_sign << 7 | second << 4 | second_sign.roll(1, -1) << 3
    out[:, :512] = lanes.flatten(1) & 0xFF
    out[:, 512:768] = words.flatten(1)
    out[:, 776:] = less[:, ::2] | less[:, 1::2] << 4
    marks, is_plain = _marks(-of_lanes.flatten(1))
    out[:, 768:769] = largest | LEFT_PLAIN * is_plain.unsqueeze(-1)
    out[:, 769] = 0
    out[:, 770:776:2], out[:, 771:776:2] = marks & 0xFF, marks >> 8
    return is_plain.sum()


def _by_lane(tiles: Tensor) -> Tensor:
    """[tiles, 16, 32] as [tiles, 32 lanes, row g or g + 8, columns 0 .. 3 or 4 .. 7, 4]."""
    return tiles.view(-1, 2, 8, 4, 2, 4).permute(0, 2, 3, 1, 4, 5).flatten(1, 2)


def _marks(distances: Tensor) -> tuple[Tensor, Tensor]:
    """Return marks [tiles, 3] of the distances [tiles, 512] above 0, and which tiles have more of them."""
    tile, place = (distances > 0).nonzero(as_tuple=True)
    counts = torch.bincount(tile, minlength=len(distances))
    rank = torch.arange(len(tile), device=tile.device) - (counts.cumsum(0) - counts)[tile]
    marks = torch.zeros(len(distances), MARKS, dtype=torch.int32, device=tile.device)
    kept = rank < MARKS
    tile, place, rank = tile[kept], place[kept], rank[kept]
    marks[tile, rank] = (place >> 4 | (place & 0xF) << 5).int() | distances[tile, place] << 9
    return marks, counts > MARKS
