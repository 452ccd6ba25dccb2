"""Packing is a bijection, and a tile is where the kernels look for it."""

import pytest
import torch

from eyas.kernels.layout import BlockedMatrix


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
