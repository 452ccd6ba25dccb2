"""Philox against known answers and plain integers; Gumbel noise against its fp64 formula, its keys and its tail."""

import math

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.kernels.reference.rounds.noise import _to_gumbel, gumbel, philox_4x32

WORD = st.integers(0, 2**32 - 1)
# Random123, examples of the known-answer tests of philox4x32 with 10 rounds: counter, key, answer.
KNOWN = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


def words(text):
    return tuple(torch.tensor(int(word, 16)) for word in text.split())


def philox_of_integers(counter, key):
    """The paper's rounds on Python integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second % 2**32, (first >> 32) ^ c3 ^ k1, first % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    assert [f"{word:08x}" for word in philox_4x32(words(counter), words(key))] == answer.split()


@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
def test_equals_plain_integers(counter, key):
    as_tensors = tuple(tuple(map(torch.tensor, values)) for values in (counter, key))
    assert tuple(map(int, philox_4x32(*as_tensors))) == philox_of_integers(counter, key)


@given(st.integers(0, 2**63 - 1), st.integers(0, 15), st.integers(0, 2**17), st.integers(0, 201087))
def test_one_value_is_the_formula(seed, choice, position, token):
    """g = -log E, E = -log1p(-w), w = (r + 1/2) 2^-32, with r lane id % 4 of counter (id / 4, position, choice, 0)."""
    bits = philox_of_integers((token // 4, position, choice, 0), (seed % 2**32, seed >> 32))[token % 4]
    share = (bits + 0.5) / 2**32
    exponential = -math.log1p(-share)
    rounded_share = 1e-7 / ((1 - share) * exponential)  # matters where noise is least
    one = [torch.tensor([value]) for value in (seed, choice, position)]
    assert gumbel(*one, ids_V=torch.tensor([token])).item() == pytest.approx(
        -math.log(exponential), rel=2e-6, abs=2e-6 + rounded_share
    )


def test_a_value_depends_on_nothing_beside_it():
    """Whole rows, some ids, one row alone: the same bits."""
    seeds, choices, positions = torch.tensor([3, 2**62 + 5, 3]), torch.tensor([0, 0, 1]), torch.tensor([7, 7, 100000])
    ids = torch.tensor([0, 5, 2, 1000, 998, 3])
    whole = gumbel(seeds, choices, positions, vocab_size=1001)
    assert whole.shape == (3, 1001)
    assert torch.equal(gumbel(seeds, choices, positions, ids_V=ids), whole[:, ids])
    assert torch.equal(gumbel(seeds[1:2], choices[1:2], positions[1:2], vocab_size=1001), whole[1:2])
    assert torch.equal(gumbel(seeds, choices, positions, vocab_size=6), whole[:, :6])
    assert whole.unique().numel() > 0.999 * whole.numel()


def test_moments_are_those_of_a_gumbel():
    count = torch.zeros(200, dtype=torch.int64)
    values = gumbel(count, count, torch.arange(200), vocab_size=5000).double().flatten().numpy()
    assert scipy.stats.kstest(values, scipy.stats.gumbel_r.cdf).pvalue > 1e-3
    assert values.mean() == pytest.approx(np.euler_gamma, abs=0.005)


def test_the_tail_is_as_fine_as_the_random_bits():
    """The largest noises, which decide a draw among 200,000 tokens, differ for every r; the naive form ties them."""
    bits = torch.arange(4096)
    expected = -torch.log(-torch.log1p(-(bits.double() + 0.5) / 2**32))
    ours = _to_gumbel(bits)
    assert (ours.diff() < 0).sum() > 0.999 * len(ours) - 4
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=0)
    uniform = (2**32 - 1 - bits).float() / 2**32
    naive = -torch.log(-torch.log(uniform.clamp(max=1 - 2**-24)))
    assert naive.unique().numel() < 40


def test_extreme_bits_are_finite():
    assert _to_gumbel(torch.tensor([0, 1, 2**31, 2**32 - 1])).isfinite().all()
