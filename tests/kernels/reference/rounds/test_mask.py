"""Masked scores against a loop over bits, and against llguidance's own kernel."""

import numpy as np
import pytest
import torch

from eyas.kernels.reference.rounds.mask import mask_scores


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100, 4096])
def test_equals_a_loop_over_bits_and_llguidance(vocab_size):
    from llguidance.numpy import apply_token_bitmask_inplace

    generator = np.random.default_rng(vocab_size)
    words = generator.integers(-(2**31), 2**31, size=(5, -(-vocab_size // 32)), dtype=np.int32)
    words[0], words[1] = -1, 0
    scores = generator.standard_normal((5, vocab_size)).astype(np.float32)
    found = mask_scores(torch.from_numpy(scores), torch.from_numpy(words)).numpy()
    for row in range(5):
        for token in range(vocab_size):
            allowed = int(words[row, token // 32]) >> (token % 32) & 1
            assert found[row, token] == (scores[row, token] if allowed else -np.inf)
    apply_token_bitmask_inplace(scores, words)
    assert np.array_equal(found, scores)
