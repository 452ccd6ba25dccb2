"""Synthetic acceptance in launches against the same with indices."""

import pytest
import torch
from tests.kernels.support.rows import DEVICE

from eyas.kernels.reference.rounds.synthetic import decide_ref, guess_ref
from eyas.kernels.triton.rounds.synthetic import decide, guess


@pytest.mark.parametrize("num_drafts", [0, 1, 3])
def test_equals_indices(num_drafts):
    """At the last positions, too, behind which a chain may go on."""
    generator = torch.Generator().manual_seed(num_drafts)
    ids = torch.randint(0, 50, (5, 9), generator=generator).to(DEVICE)
    right = (torch.rand(5, 9, generator=generator) < 0.5).to(DEVICE)
    length, slots = torch.tensor([2, 8, 5, 1, 7]).to(DEVICE), torch.tensor([4, 0, 1]).to(DEVICE)
    for step, num_rows in ((0, 1), (2, 1), (1, 4)):
        found, expected = torch.zeros(2, 3 * num_rows, dtype=torch.int64, device=DEVICE)
        guess(ids, slots, length, step, found)
        guess_ref(ids, slots, length, step, expected)
        assert torch.equal(found, expected)
    drafts = torch.randint(0, 50, (3, num_drafts), generator=generator).to(DEVICE)
    logits, expected = torch.zeros(2, 3, num_drafts + 1, 50, device=DEVICE)
    decide(logits, right, slots, length, drafts, 1e4)
    decide_ref(expected, right, slots, length, drafts, 1e4)
    assert torch.equal(logits, expected) and int((logits != 0).sum()) == 3 * num_drafts
