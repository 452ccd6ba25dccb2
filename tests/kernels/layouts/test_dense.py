"""Packing is a bijection, and a tile is where the kernels look for it."""

import pytest
import torch

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.fp8 import round_to_fp8


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [(16, 32), (48, 96), (32, 160)])
def test_the_way_there_and_back(shape, gated):
    weight = torch.randn(shape).bfloat16()
    packed = BlockedMatrix.pack(weight, gated=gated)
    assert (packed.num_rows, packed.num_columns) == shape
    assert torch.equal(packed.plain(), weight)


def test_a_tile_is_a_kilobyte_of_16_rows():
    weight = torch.arange(64 * 64).view(64, 64).bfloat16()
    packed = BlockedMatrix.pack(weight).data
    assert torch.equal(packed[2, 1], weight[32:48, 32:64])
    gated = BlockedMatrix.pack(weight, gated=True).data
    assert torch.equal(gated[2, 1, :8], weight[16:24, 32:64])
    assert torch.equal(gated[2, 1, 8:], weight[48:56, 32:64])


def test_odd_shapes_are_refused():
    for shape in ((8, 32), (16, 40)):
        with pytest.raises(ValueError, match="blocked"):
            BlockedMatrix.pack(torch.zeros(shape))


@pytest.mark.parametrize("gated", [False, True])
def test_8_bits_keep_three_of_the_mantissa_and_a_range_of_their_own_in_each_row(gated):
    weight = torch.randn(32, 64) * torch.logspace(-8, 4, 32).unsqueeze(1)
    weight[5] = 0
    packed = BlockedMatrix.pack(weight, gated=gated)
    rounded = packed.in_fp8()
    assert rounded.data.dtype == torch.float8_e4m3fn and rounded.num_columns == 64
    assert torch.equal(rounded.plain(), round_to_fp8(weight.bfloat16()))
    scale = weight.abs().amax(1, keepdim=True)
    assert ((rounded.plain() - weight).abs() <= (weight.abs() / 14).clamp(min=scale / 2**17)).all()
