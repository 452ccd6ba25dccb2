"""What the host writes to the device's state in each round: only changes, and by way of pinned memory."""

import numpy as np
import pytest
import torch

from eyas.engine.draft_length.confidence import NUM_LEVELS, Cut
from eyas.engine.round.state import DeviceState


@pytest.fixture
def state():
    return DeviceState(
        num_slots=3,
        max_positions=64,
        page_size=16,
        vocab_size=100,
        tap_width=0,
        tap_ring=1,
        tap_dtype=torch.float32,
        device=torch.device("cpu"),
    )


@pytest.fixture
def copies(monkeypatch):
    """All numbers that went to the device through `on_device`, which pins them on a GPU."""
    on_device, seen = DeviceState.on_device, []

    def watched(self, numbers):
        seen.append(np.array(numbers))
        return on_device(self, numbers)

    monkeypatch.setattr(DeviceState, "on_device", watched)
    return seen


def test_draft_limits_are_copied_once_where_they_change(state, copies):
    for limits, by_lookup, num_copies in (({0: 3, 2: 1}, (2,), 1), ({0: 3, 2: 1}, (2,), 1), ({1: 5}, (), 2)):
        state.limit_drafts(limits, by_lookup)
        assert state.draft_limit_S.tolist() == [limits.get(slot, 0) for slot in range(4)]
        assert state.by_lookup_S.tolist() == [slot in by_lookup for slot in range(4)]
        assert len(copies) == num_copies


def test_cuts_are_copied_once_where_they_change(state, copies):
    rows = np.arange(2 * (1 + NUM_LEVELS), dtype=np.float32).reshape(2, -1)
    for cut, num_copies in ((Cut((0, 2), rows), 1), (Cut((0, 2), rows), 1), (Cut(), 2)):
        state.cut_drafts(cut)
        thresholds = dict(zip(cut.slots, cut.logs_SN[:, 0], strict=True))
        assert state.cut_SN[:, 0].tolist() == [thresholds.get(slot, -np.inf) for slot in range(4)]
        assert len(copies) == num_copies
    assert state.cut_SN[[0, 2], 1:].numpy().tolist() == rows[:, 1:].tolist()
