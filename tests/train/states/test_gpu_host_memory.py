"""Kept states on a GPU: pinned, and whole after copies in both directions."""

import pytest
import torch

from eyas.train.states.host_memory import HostMemory


@pytest.mark.gpu
def test_states_are_copied_from_pinned_memory():
    memory = HostMemory(1 << 20, pinned=True, block_bytes=1 << 16)
    given = [torch.randn(100, 40, device="cuda"), torch.arange(100, device="cuda")]
    copies = memory.copies(given)
    assert all(x.is_pinned() for x in copies)
    assert all(torch.equal(x, y.to("cuda", non_blocking=True)) for x, y in zip(given, copies, strict=True))
