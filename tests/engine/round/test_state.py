"""What the host writes to the device's state: only changes, in few launches, and by way of pinned memory."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.confidence import NUM_LEVELS, Cut
from eyas.engine.round.state import DeviceState
from eyas.engine.sequences.sequence import Sequence


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
        seen.append(numbers)
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


class Launches(TorchDispatchMode):
    """Counts the writes to fields."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name in ("aten::index_put_", "aten::index_fill_")
        return func(*args, **(kwargs or {}))


def entering(slot, **params):
    request = Request(request_id="r", prompt_ids=(5, 6, 7), params=SamplingParams(**params))
    sequence = Sequence(
        request=request, choice=2, seed=9, budget=20, stop_ids=(1, 2), keys=(), deliver=print, leader=None
    )
    sequence.slot = slot
    return sequence


def test_a_sequence_enters_in_few_launches(state, copies):
    """The GPU waits for the host until the first prompt pass: a field each was 0.2 ms of a first token."""
    with Launches() as launches:
        state.enter([entering(1, temperature=0.5, top_k=7), entering(2)])
    assert launches.count == 5 and len(copies) == 5
    assert state.length_S.tolist() == [0, 3, 3, 1] and state.sampling.top_k.tolist() == [0, 7, 0, 0]
    assert state.sampling.temperature.tolist() == [0, 0.5, 1, 0] and state.sampling.choice.tolist() == [0, 2, 2, 0]


def test_a_bias_does_not_outlive_its_sequence(state):
    state.enter([entering(1, logit_bias={4: 2.5}), entering(2)])
    assert state.bias_SN[1, 0] == 2.5 and state.bias_ids_SN[1, 0] == 4 and state.num_bias_S.tolist() == [0, 1, 0, 0]
    state.enter([entering(2)])
    assert state.bias_SN[1, 0] == 2.5
    state.enter([entering(0), entering(1)])
    assert not state.bias_SN.any() and not state.bias_ids_SN.any() and not state.num_bias_S.any()
