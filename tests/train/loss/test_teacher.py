"""What is kept of the target's distributions against the full table of logits."""

import pytest
import torch
from tests.support.training import head_config, packed, states_for

from eyas.train.loss import teacher as module
from eyas.train.loss.teacher import DraftTeacher
from eyas.train.types import Cells


@pytest.mark.parametrize("block", [1, 5, 37, 1000])
def test_labels_sums_and_tiles_are_those_of_the_full_table(monkeypatch, block):
    monkeypatch.setattr(module, "VOCABULARY", block)
    config = head_config()
    batch = packed((30, 11))
    states, teacher = states_for(config, batch)
    ids = torch.arange(0, 37, 2)
    cells = [
        Cells(torch.arange(4), torch.tensor([3, 7, 8, 40]), 1.0),
        Cells(torch.arange(2), torch.tensor([7, 9]), 1.0),
    ]
    draft = DraftTeacher(teacher, ids)
    taught = draft.taught(cells, states, tile=2)
    assert taught.positions_S.tolist() == [3, 7, 8, 9, 40]
    logits = (states.last_TH @ teacher.lm_head_VH.T)[taught.positions_S]
    torch.testing.assert_close(taught.lse_S, logits.logsumexp(-1), rtol=0, atol=1e-12)
    best = logits.argmax(-1).tolist()
    assert taught.labels_S.tolist() == [ids.tolist().index(x) if x in ids else -1 for x in best]
    tile = draft.tile(taught, slice(1, 4), states.last_TH)
    torch.testing.assert_close(tile.p_SV, logits[1:4, ids].softmax(-1), rtol=0, atol=1e-12)
    torch.testing.assert_close(tile.full_SV, logits.softmax(-1)[1:4, ids], rtol=0, atol=1e-12)


def test_of_equal_logits_the_first_token_is_the_best(monkeypatch):
    monkeypatch.setattr(module, "VOCABULARY", 2)
    config = head_config()
    states, teacher = states_for(config, packed((3,)))
    teacher = teacher._replace(lm_head_VH=torch.ones_like(teacher.lm_head_VH))
    states = states._replace(last_TH=torch.ones_like(states.last_TH))  # sums of ones are exact in any order
    draft = DraftTeacher(teacher, torch.arange(37))
    assert draft.taught([Cells(torch.arange(1), torch.arange(3), 1.0)], states, tile=8).labels_S.tolist() == [0, 0, 0]
