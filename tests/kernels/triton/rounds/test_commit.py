"""A round's commit against the engine's plain one."""

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support.rows import DEVICE

from eyas.kernels.reference.rounds.accept import accept
from eyas.kernels.triton.rounds.commit import Ledger, commit

SLOTS, N, V, W, C = 6, 20, 5, 8, 9


def ledger_of(generator, *, counts=True, taps=True):
    """Random slots; tokens are few, so that drafts are often right and stops often drawn."""

    def integers(*shape, low=0, high):
        return torch.randint(low, high, shape, generator=generator).to(DEVICE)

    return Ledger(
        tokens_SN=integers(SLOTS, N, high=V),
        length_S=integers(SLOTS, low=1, high=14),
        live_S=integers(SLOTS, high=4) > 0,
        remaining_S=integers(SLOTS, low=1, high=7),
        stop_ids_SN=torch.where(integers(SLOTS, 4, high=3) > 0, -1, integers(SLOTS, 4, high=V)),
        output_counts_SV=integers(SLOTS, V, high=3).int() if counts else None,
        tap_ring_SWC=torch.randn(SLOTS, W, C, generator=generator).to(DEVICE) if taps else None,
    )


def committed_plainly(ledger, slots, drafts, num_drafts, sampled, failed, taps, most):
    """The same with indices and one sequence after the other."""
    accepted = accept(
        drafts,
        num_drafts,
        sampled,
        failed,
        ledger.stop_ids_SN[slots],
        torch.minimum(ledger.remaining_S[slots], most),
        ledger.live_S[slots],
    )
    for s, slot in enumerate(slots.tolist()):
        count, length = int(accepted.num_committed_S[s]), int(ledger.length_S[slot])
        new = sampled[s, :count]
        ledger.tokens_SN[slot, length : length + count] = new
        if ledger.output_counts_SV is not None:
            ledger.output_counts_SV[slot] += torch.bincount(new, minlength=V).int()
        for r in range(count if taps is not None else 0):
            ledger.tap_ring_SWC[slot, (length + r) % W] = taps[s * sampled.shape[1] + r]
        ledger.length_S[slot] += count
        ledger.remaining_S[slot] -= count
    ended = accepted.stopped_S | (ledger.remaining_S[slots] == 0) | (accepted.failed_S != 0)
    ended = ended & ledger.live_S[slots]
    ledger.live_S[slots] = ledger.live_S[slots] & ~ended
    return SimpleNamespace(**accepted._asdict(), ended_S=ended)


@given(st.integers(0, 10**6), st.integers(0, 4), st.booleans(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=20, deadline=None)
def test_equals_one_sequence_after_the_other(seed, num_drafts, counts, taps, has_late_rows, has_levels):
    """And where rows lack their masks, which may be all of a sequence."""
    generator = torch.Generator().manual_seed(seed)
    ours = ledger_of(generator, counts=counts, taps=taps)
    plain = Ledger(*(None if field is None else field.clone() for field in ours))
    slots = torch.randperm(SLOTS, generator=generator)[:4].to(DEVICE)
    drafts = torch.randint(0, V, (4, num_drafts), generator=generator).to(DEVICE)
    valid = torch.randint(0, num_drafts + 1, (4,), generator=generator).to(DEVICE)
    sampled = torch.randint(0, V, (4, num_drafts + 1), generator=generator).to(DEVICE)
    right = torch.rand(4, num_drafts, generator=generator).to(DEVICE) < 0.7
    sampled[:, :-1] = torch.where(right, drafts, sampled[:, :-1])
    failed = (torch.randint(0, 12, sampled.shape, generator=generator) - 9).clamp(min=0).to(DEVICE)
    rows = torch.randn(sampled.numel(), C, generator=generator).to(DEVICE, torch.bfloat16) if taps else None

    most = torch.randint(0, num_drafts + 2, (4,), generator=generator).to(DEVICE)
    if not has_late_rows:
        most[:] = num_drafts + 1

    levels = torch.randint(0, 9, drafts.shape, generator=generator).to(DEVICE) if has_levels else None
    space = torch.zeros(999, dtype=torch.int64, device=DEVICE)

    result = commit(
        ours, slots, drafts, valid, sampled, failed, rows,
        most_S=most if has_late_rows else None, levels_SK=levels, space=space,
    )  # fmt: skip
    expected = committed_plainly(plain, slots, drafts, valid, sampled, failed, rows, most)
    numbers = [getattr(expected, name).long() for name in result._fields[:5]]
    for name, value, right in zip(result._fields, result[:5], numbers, strict=False):
        assert torch.equal(value, right), name
    parts = [torch.stack((*numbers, valid), dim=1), sampled, drafts, *([levels] if has_levels else [])]
    assert torch.equal(result.packed_SW, torch.cat(parts, dim=1))
    assert result.packed_SW.data_ptr() == space.data_ptr() and not space[result.packed_SW.numel() :].any()
    for name, value in ours._asdict().items():
        assert value is None or torch.equal(value, getattr(plain, name)), name
