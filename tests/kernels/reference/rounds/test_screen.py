"""The bound of a rough product against fp64, and the tokens that screening leaves."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import ROUNDING, RoughMatrix
from eyas.kernels.reference.layers.norm import Normed, inverse_rms
from eyas.kernels.reference.rounds.sample import SamplingRows, sample
from eyas.kernels.reference.rounds.screen import error_of, most_length, screen_ref

V, EPS, T = 320, 1e-5, 6
SPREADS = st.sampled_from([0.0, 1.0, 3.0])  # of logarithms
SCALES = st.sampled_from([1e-30, 1e-6, 1.0, 1e6])


def normal(generator, *shape):
    return torch.randn(shape, generator=generator)


def drawn(seed, *, rows, weights, columns, num_inputs, weight_scale, hidden_scale):
    """A matrix with lognormal rows, weights and columns, and hidden states whose outliers meet its own."""
    generator = torch.Generator().manual_seed(seed)
    spread = (normal(generator, num_inputs) * columns).exp()
    weight = normal(generator, V, num_inputs) * (normal(generator, V, num_inputs) * weights).exp() * spread
    weight *= (normal(generator, V, 1) * rows).exp() * weight_scale
    hidden = normal(generator, T, num_inputs) * spread * hidden_scale
    return weight.bfloat16(), hidden


def logits_of(normed, weight, dtype):
    return (normed.rows_TH.to(dtype) @ weight.to(dtype).T) * inverse_rms(normed, EPS).to(dtype)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000), rows=SPREADS, weights=SPREADS, columns=SPREADS,
    num_inputs=st.sampled_from([32, 96, 1024]), weight_scale=SCALES, hidden_scale=SCALES,
)  # fmt: skip
@example(seed=0, rows=0.0, weights=0.0, columns=0.0, num_inputs=32, weight_scale=1.0, hidden_scale=1e-30)
def test_the_bound_holds(seed, **shape):
    weight, hidden = drawn(seed, **shape)
    normed = Normed(hidden.bfloat16(), hidden.square().unflatten(1, (-1, 16)).sum(-1))
    rough = RoughMatrix.of(BlockedMatrix.pack(weight))
    if rough is None:
        assert weight.double().norm(dim=1).max() > 2.0**39
        return
    error = error_of(normed, EPS, rough).double()
    for dtype in (torch.float32, torch.float64):
        apart = (logits_of(normed, weight, dtype) - logits_of(normed, rough.plain(), dtype)).abs()
        assert (apart <= error).all(), (apart / error).max()


def test_the_bound_is_nearly_reached_and_no_lower_one_would_do():
    """The worst row is one that points where its rounding errors do."""
    weight = torch.randn(V, 1024, generator=torch.Generator().manual_seed(0)).bfloat16()
    rough = RoughMatrix.of(BlockedMatrix.pack(weight))
    rows = (weight.double() - rough.plain())[:T].mul(2.0**20).bfloat16()
    normed = Normed(rows, torch.ones(T, 1))
    apart = logits_of(normed, weight, torch.float64) - logits_of(normed, rough.plain(), torch.float64)
    ratio = (apart[:, :T].diagonal() / error_of(normed, EPS, rough)[:, :T].diagonal()).min().item()
    print(f"\nerror over its bound: {ratio:.4f}")
    assert 0.97 - ROUNDING < ratio <= 1


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000), rows=SPREADS, weights=SPREADS, columns=SPREADS, num_inputs=st.sampled_from([32, 256]),
    weight_scale=SCALES, ties=st.sampled_from(["none", "near", "exact"]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
)  # fmt: skip
def test_the_token_of_all_logits_is_left(seed, ties, temperature, **shape):
    weight, hidden = drawn(seed, hidden_scale=1.0, **shape)
    if ties != "none":
        generator = torch.Generator().manual_seed(seed)
        noise = normal(generator, *weight.shape) * (2.0**-8 if ties == "near" else 0.0)
        weight = (weight[torch.randint(V // 10, (V,), generator=generator)] * (1 + noise)).bfloat16()
    normed = Normed(hidden.bfloat16(), hidden.square().unflatten(1, (-1, 16)).sum(-1))
    rough = RoughMatrix.of(BlockedMatrix.pack(weight))
    if rough is None:
        return
    logits, counted = logits_of(normed, weight, torch.float32), torch.arange(T)
    ones, zeros = torch.ones(T), torch.zeros(T, dtype=torch.int64)
    settings_T = SamplingRows(ones * temperature, zeros, ones, ones * 0, counted * 31, zeros, temperature > 0, False)
    approximate = logits_of(normed, rough.plain(), torch.float32)
    tiles = screen_ref(approximate, error_of(normed, EPS, rough), counted, settings_T)
    left = torch.where(tiles.repeat_interleave(16, dim=1), logits, float("-inf"))
    assert torch.equal(sample(left, counted, settings_T), sample(logits, counted, settings_T))


@pytest.mark.parametrize("largest", [1e-30, 1.0, 2.0**39])
def test_nothing_overflows_below_the_longest_row(largest):
    assert most_length(largest) * max(largest, 127 * 4608**0.5) * 2 < torch.finfo(torch.float32).max
