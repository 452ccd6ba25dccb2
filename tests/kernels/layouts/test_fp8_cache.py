"""Keys and values in 8 bits: what is kept of numbers of any size, and what becomes of those that do not fit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.kernels.layouts.fp8_cache import BOUND, BROKEN, LARGEST_SCALE, SMALLEST_SCALE, from_fp8, to_fp8, to_fp8_pair

EXPONENTS = st.integers(-140, 15)


def numbers(seed, exponent, dtype=torch.bfloat16):
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x / x.abs().amax() * 1.7 * 2.0**exponent).to(dtype)


@given(seed=st.integers(0, 1000), exponent=EXPONENTS, dtype=st.sampled_from((torch.bfloat16, torch.float32)))
def test_a_number_is_rounded_to_nearest_and_is_one_of_bf16(seed, exponent, dtype):
    x = numbers(seed, exponent, dtype)
    rounded, scales = to_fp8(x)
    kept = from_fp8(rounded, scales)
    assert torch.equal(kept, kept.bfloat16().float())
    factor = 2.0 ** (scales.double() - 127).unsqueeze(-1)
    step = torch.maximum(2.0 ** (torch.frexp(kept).exponent.double() - 4), factor / 512)
    assert ((kept.double() - x.double()).abs() <= step / 2 * (1 + 1e-9)).all()
    assert ((scales >= SMALLEST_SCALE) & (scales <= LARGEST_SCALE)).all()
    largest = x.abs().amax(-1, keepdim=True).double() / factor
    assert (largest < 448).all()
    assert ((largest >= 224) | (scales.unsqueeze(-1) == SMALLEST_SCALE)).all()


@pytest.mark.parametrize("mantissa", [1.0, 1.7421875, 1.75, 1.9921875])
@pytest.mark.parametrize("exponent", [-126, -110, 0, 14])
def test_the_power_of_two_leaves_no_room(mantissa, exponent):
    x = torch.tensor([mantissa * 2.0**exponent, 0.0]).bfloat16()
    kept = from_fp8(*to_fp8(x))
    if exponent > -110:  # else the scale is the smallest
        assert x[0].float() * 15 / 16 <= kept[0] <= x[0].float() * 17 / 16
    assert kept[1] == 0 and kept.isfinite().all()


def test_zeros_and_memory_that_was_never_written_are_zeros():
    assert not from_fp8(*to_fp8(torch.zeros(3, 64))).any()
    assert not from_fp8(torch.zeros(3, 64, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)).any()


@pytest.mark.parametrize("broken", [float("inf"), float("-inf"), float("nan"), BOUND, -BOUND])
@pytest.mark.parametrize("part", ["keys", "values"])
def test_what_does_not_fit_breaks_the_key_and_leaves_no_value(broken, part):
    keys, values = torch.randn(4, 64).bfloat16(), torch.randn(4, 64).bfloat16()
    (keys if part == "keys" else values)[2, 7] = broken
    k, v, scales = to_fp8_pair(keys, values)
    k, v = from_fp8(k, scales[:, 0]), from_fp8(v, scales[:, 1])
    assert k[2].isnan().all() and scales[2, 0] == BROKEN
    assert not v[2].any() and scales[2, 1] <= LARGEST_SCALE
    others = torch.tensor([0, 1, 3])
    assert k[others].isfinite().all() and v[others].all(-1).any()
