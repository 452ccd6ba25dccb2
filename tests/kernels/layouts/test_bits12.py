"""Nothing is lost in 12 bits: every tile that is not left plain is read back, weight by weight, as the format says."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from eyas.kernels.layouts.bits12 import CHUNK_TILES, TILE_BYTES, to_12_bits
from eyas.kernels.layouts.dense import BlockedMatrix

SPECIAL = [0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x3F80]  # subnormals, inf, NaNs


def read_back(tile: np.ndarray) -> np.ndarray | None:
    """Read one tile's bits [16, 32], a weight at a time; None for a tile that is left plain."""
    low, codes, header = tile[:512], tile[512:768].view("<u4"), tile[768:]
    if header[0] & 0x80:
        return None
    marks = {int(mark) & 0x1FF: int(mark) >> 9 for mark in header[2:8].view("<u2") if mark}
    bits = np.zeros((16, 32), np.uint16)
    for row in range(16):
        number = header[0] - (header[8 + row // 2] >> 4 * (row % 2) & 0xF)
        for column in range(32):
            lane, place = row % 8 * 4 + column // 8, row // 8 * 8 + column % 8
            word = int(codes[2 * lane + row // 8])
            if column % 8 >= 4:
                word = (word >> 4 | word << 28) & 0xFFFFFFFF
            code = word >> 8 * (column % 4) & 0xFF
            high = code & 0x80 | int(number) + (code & 7) - marks.get(lane | place << 5, 0)
            bits[row, column] = high << 8 | int(low[lane * 16 + place])
    return bits


def check(weight: torch.Tensor, *, most_plain: int) -> None:
    """Pack alone, as one tile in many others, and compare bits."""
    data = BlockedMatrix.pack(weight).data
    many = torch.ones(64 * data.shape[0], data.shape[1], 16, 32).bfloat16()
    many[: len(data)] = data
    packed = to_12_bits(many)
    assert packed is not None and packed.shape == (*many.shape[:2], TILE_BYTES)
    num_plain = 0
    for tile, expected in zip(packed.flatten(0, 1), many.flatten(0, 1)[: data.shape[0] * data.shape[1]], strict=False):
        bits = read_back(tile.numpy())
        num_plain += bits is None
        if bits is not None:
            assert np.array_equal(bits, expected.view(torch.int16).numpy().view(np.uint16))
    assert num_plain <= most_plain


@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(0, 6),
    row_spread=st.floats(0, 6),
    special=st.lists(st.tuples(st.integers(0, 511), st.sampled_from(SPECIAL)), max_size=6),
    scale=st.sampled_from([1e-38, 1e-20, 0.02, 1e30]),
)
def test_every_weight_comes_back(seed, spread, row_spread, special, scale):
    noise = torch.Generator().manual_seed(seed)
    weight = torch.randn(16, 32, generator=noise) * scale
    weight *= (spread * torch.randn(16, 32, generator=noise)).exp()
    weight *= (row_spread * torch.randn(16, 1, generator=noise)).exp()
    bits = weight.bfloat16().view(torch.int16).flatten()
    for place, value in special:
        bits[place] = value - (value >> 15 << 16)
    check(bits.view(torch.bfloat16).view(16, 32), most_plain=1)


@pytest.mark.parametrize("value", SPECIAL)
def test_tiles_of_one_value_have_a_form(value):
    bits = torch.full((16, 32), value - (value >> 15 << 16), dtype=torch.int16)
    check(bits.view(torch.bfloat16), most_plain=0)


def test_three_weights_of_a_tile_may_be_tiny():
    weight = torch.full((16, 32), -0.5)
    places = [(0, 0), (7, 31), (15, 13), (9, 4)]
    for row, column in places[:3]:
        weight[row, column] = 1e-30
    check(weight, most_plain=0)
    weight[places[3]] = 0
    packed = to_12_bits(BlockedMatrix.pack(weight).data)
    assert packed is None  # one tile of one


def test_a_matrix_of_scattered_exponents_does_not_pay():
    assert to_12_bits((torch.randn(4, 32, 16, 32) * 6).exp().bfloat16()) is None


@pytest.mark.parametrize(("row_spread", "most"), [(0, 1e-3), (1, 1e-3), (2, 5e-3)])
def test_normal_weights_pay_with_rows_of_any_scale(row_spread, most):
    num_tiles = CHUNK_TILES + 100  # more than are packed at once
    data = torch.randn(num_tiles, 1, 16, 32) * (row_spread * torch.randn(num_tiles, 1, 16, 1)).exp()
    packed = to_12_bits(data.bfloat16())
    assert packed is not None
    assert (packed[..., 768] >= 0x80).sum() <= most * num_tiles
    last = read_back(packed[-1, 0].numpy())
    assert last is None or np.array_equal(last, data[-1, 0].bfloat16().view(torch.int16).numpy().view(np.uint16))
