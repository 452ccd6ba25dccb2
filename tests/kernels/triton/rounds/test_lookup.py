"""Looking up on a GPU against the plain search, over several programs a sequence."""

import pytest
import torch
from tests.kernels.support.rows import DEVICE

from eyas.kernels.reference.rounds.lookup import look_up_ref
from eyas.kernels.triton.rounds import lookup

FEW = [((2, 5), 16), ((5, 5), 64)]
ALL = [(match, size) for match in ((2, 5), (5, 5), (1, 3)) for size in (16, 64)]


@pytest.mark.parametrize(
    ("match", "size"), [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in FEW)]
)
def test_equals_the_plain_search(match, size, monkeypatch):
    """Few different tokens, so that there are many matches; lengths from one token to all; what follows is junk."""
    monkeypatch.setattr(lookup, "_SIZE", size)
    generator = torch.Generator().manual_seed(size)
    tokens = torch.randint(3, (12, 200), generator=generator).to(DEVICE)
    length = torch.tensor([1, 2, 3, 6, 15, 16, 17, 63, 64, 65, 199, 200], device=DEVICE)
    tokens[:4] = 1
    tokens[11] = torch.arange(200)  # nothing occurs twice
    slots = torch.randperm(12, generator=generator)[:11].to(DEVICE)
    options = {"min_match": match[0], "max_match": match[1], "max_length": 200}
    for num_drafts in (1, 5, 8):
        found = lookup.look_up(tokens, slots, length, num_drafts, **options)
        plain = look_up_ref(tokens, slots, length, num_drafts, **options)
        assert torch.equal(found.is_found_S, plain.is_found_S) and plain.is_found_S.any()
        assert torch.equal(found.ids_SK[plain.is_found_S], plain.ids_SK[plain.is_found_S])
