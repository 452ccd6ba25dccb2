"""Rows of sequences in one launch against the same with indices."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support.rows import DEVICE

from eyas.kernels.reference.rounds.gather import Book, PlainGather
from eyas.kernels.triton.rounds.gather import DeviceGather

SLOTS, N, P, W, C = 7, 20, 1030, 5, 1100  # pages and taps of more than one program


def book_of(generator):
    def integers(*shape, low=0, high):
        return torch.randint(low, high, shape, generator=generator).to(DEVICE)

    return Book(
        tokens_SN=integers(SLOTS, N, high=99),
        length_S=integers(SLOTS, low=1, high=14),
        live_S=integers(SLOTS, high=4) > 0,
        remaining_S=integers(SLOTS, high=7),
        draft_limit_S=integers(SLOTS, high=6),
        by_lookup_S=integers(SLOTS, high=4) == 0,
        head_length_S=integers(SLOTS, high=14),
        full_SP=integers(SLOTS, P, high=999),
        sliding_SP=integers(SLOTS, P, high=999),
        tap_ring_SWC=torch.randn(SLOTS, W, C, generator=generator).to(DEVICE, torch.bfloat16),
    )


def copy_of(book):
    return Book(*(field.clone() for field in book))


def equal(ours, plain):
    for name, value in ours._asdict().items():
        expected = getattr(plain, name)
        assert value.dtype == expected.dtype and torch.equal(value, expected), name


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_equals_indices(seed, num_seqs, num_drafts):
    """Of sequences in any slots, the dead one several times."""
    generator = torch.Generator().manual_seed(seed)
    book, ours, plain, dead = book_of(generator), DeviceGather(), PlainGather(), SLOTS - 1
    book.live_S[dead] = False
    slots = torch.cat((torch.randperm(dead, generator=generator)[:num_seqs], torch.tensor([dead] * 2))).to(DEVICE)
    num_seqs += 2
    drafts = torch.randint(0, 99, (num_seqs, num_drafts), generator=generator).to(DEVICE)
    valid = torch.randint(0, num_drafts + 1, (num_seqs,), generator=generator).to(DEVICE)
    lives = torch.zeros(2, num_seqs * (num_drafts + 1), dtype=torch.bool, device=DEVICE)
    found = ours.verified(book, slots, drafts, valid, lives[0])
    equal(found, plain.verified(book, slots, drafts, valid, lives[1]))
    assert torch.equal(lives[0], lives[1]) and found.live_SR.data_ptr() == lives[0].data_ptr()
    equal(ours.verified(book, slots, drafts, valid), found)
    if num_drafts:
        equal(ours.chain(book, slots, num_drafts), plain.chain(book, slots, num_drafts))
    for shift in (True, False):
        before, after = copy_of(book), copy_of(book)
        found, taps = ours.unseen(before, slots, num_drafts + 1, shift=shift)
        expected, expected_taps = plain.unseen(after, slots, num_drafts + 1, shift=shift)
        equal(found, expected)
        assert torch.equal(taps, expected_taps)
        equal(before, after)
