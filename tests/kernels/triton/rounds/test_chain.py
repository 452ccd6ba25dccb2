"""Ends of chains on a GPU against the plain ones."""

import pytest
import torch
from tests.kernels.support.rows import DEVICE

from eyas.kernels.reference.rounds.chain import end_chains_ref
from eyas.kernels.triton.rounds.chain import end_chains


@pytest.mark.parametrize("num_drafts", [1, 3, 7])
def test_equals_the_plain_ends(num_drafts):
    """Chances of whole eighths, so that no order of adding makes a difference; thresholds from all to nothing."""
    generator = torch.Generator().manual_seed(num_drafts)
    edges = torch.tensor([0.1, 0.3, 0.5, 0.8, 0.9]).log()
    cut = -torch.randint(0, 9, (12, 7), generator=generator) / 8.0
    cut[:, 0], cut[0, 0] = cut[:, 0] * 3, -float("inf")
    logprobs = torch.rand(num_drafts, 10, generator=generator).log()
    logprobs[0, 0] = edges[2]
    slots = torch.randperm(12, generator=generator)[:10]
    room = torch.randint(0, num_drafts + 1, (10,), generator=generator)
    ids = torch.randint(0, 99, (num_drafts, 10), generator=generator)
    ids, logprobs = (torch.nn.functional.pad(part, (0, 2))[:, :10] for part in (ids, logprobs))
    given = [tensor.to(DEVICE) for tensor in (ids, logprobs, room, slots, cut, edges)]
    end, plain = end_chains(*given), end_chains_ref(*given)
    assert all(map(torch.equal, end, plain)) and torch.equal(end.ids_SK, given[0].t())
    assert len(set(plain.num_valid_S.tolist())) > 1 or num_drafts == 1
