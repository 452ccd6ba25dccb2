"""Some taps of a source, in another order, and everything that meets the teacher's matrices in their dtype."""

import torch
from tests.train.support.batches import batch_of, random_documents

from eyas.model.checkpoints.loader import load_target
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS
from eyas.train.states.selected import SelectedStates
from eyas.train.states.target import TargetStates
from eyas.train.types import Teacher

TINY = PRESETS["tiny"]


def test_taps_are_in_the_order_and_last_states_in_the_dtype_asked_for(tmp_path):
    folder = make_target(TINY, tmp_path / "target", seed=1)
    config, weights = load_target(folder, device=torch.device("cpu"), dtype=torch.float32)
    teacher = Teacher(weights.embed_VH, weights.lm_head_VH)
    source = TargetStates(config, weights, teacher, taps=(2, 4, 5), longest=64, fingerprint="tiny")
    batch = batch_of(random_documents(TINY.vocab_size, (20, 7)))
    whole = source.states(batch)
    parts = whole.taps_TC.chunk(3, dim=-1)

    selected = SelectedStates(source, (5, 2), dtype=torch.float64)
    found = selected.states(batch)
    assert torch.equal(found.taps_TC, torch.cat([parts[2], parts[0]], dim=-1))
    assert found.last_TH.dtype == torch.float64 and torch.equal(found.last_TH, whole.last_TH.double())
    assert (found.last_TH @ selected.teacher.lm_head_VH.T).dtype == torch.float64

    same = SelectedStates(source, (2, 4, 5)).states(batch)
    assert torch.equal(same.taps_TC, whole.taps_TC) and torch.equal(same.last_TH, whole.last_TH)
