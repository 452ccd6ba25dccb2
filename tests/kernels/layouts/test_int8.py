"""The rough copy of a matrix: its numbers, and how far it is from the matrix."""

import pytest
import torch

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import ROUNDING, RoughMatrix, rough_bytes


def wide(num_rows, num_columns):
    """Numbers, rows and columns of many sizes."""
    weight = torch.randn(num_rows, num_columns) * torch.randn(num_rows, num_columns).exp()
    return weight * torch.randn(num_rows, 1).mul(3).exp() * torch.randn(num_columns).exp()


@pytest.mark.parametrize("make", [torch.randn, wide])
def test_each_block_of_a_row_is_rounded_to_its_own_steps(make):
    weight = make(48, 96).bfloat16()
    weight[5] = 0
    weight[6, 32:64] = 0
    weight[7, :32] *= 2.0**-126  # subnormals
    rough = RoughMatrix.of(BlockedMatrix.pack(weight))
    exact, copy = weight.double().unflatten(1, (-1, 32)), rough.plain().unflatten(1, (-1, 32))
    steps = exact.abs().amax(2, keepdim=True) / 63
    assert ((exact - copy).abs() <= steps / 2 + steps.amax(1, keepdim=True) * 2.0**-15).all()
    assert not torch.equal(exact, copy) and (copy[5] == 0).all()


@pytest.mark.parametrize("make", [torch.randn, wide])
def test_slack_is_the_distance_and_some_rounding(make):
    weight = make(32, 4608).bfloat16()
    rough = RoughMatrix.of(BlockedMatrix.pack(weight))
    norm = weight.double().norm(dim=1)
    expected = (weight.double() - rough.plain()).norm(dim=1) + ROUNDING * norm
    assert (rough.slack_N.double() >= expected).all()
    torch.testing.assert_close(rough.slack_N.double(), expected, rtol=1e-5, atol=0)
    assert (norm <= rough.largest).all() and (rough.plain().norm(dim=1) <= rough.largest).all()


def test_whole_numbers_are_kept():
    weight = torch.randint(-127, 128, (32, 64)).bfloat16()
    weight[:, 3] = 127
    assert torch.equal(RoughMatrix.of(BlockedMatrix.pack(weight)).plain(), weight.double())


def test_bytes():
    rough = RoughMatrix.of(BlockedMatrix.pack(torch.randn(48, 96).bfloat16()))
    assert rough.nbytes == rough_bytes(48, 96) + 8 * 48


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 2.0**41])
def test_none_of_numbers_without_a_bound(value):
    weight = torch.randn(16, 32)
    weight[3, 5] = value
    assert RoughMatrix.of(BlockedMatrix.pack(weight.bfloat16())) is None
