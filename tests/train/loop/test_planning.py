"""The work of a run as the plan counts it, against the cells of its batches."""

import torch
from tests.train.support.small_run import write_settings

from eyas.train.loop.planning import make_plan
from eyas.train.loop.prepared import prepare_run
from eyas.train.settings.reading import read_settings


def test_work_is_that_of_the_batches(tmp_path, monkeypatch):
    counted = []
    prepared = prepare_run(read_settings(write_settings(tmp_path)))
    monkeypatch.setattr(type(prepared.making), "flops", lambda self, config, work: counted.append(work) or {"all": 1.0})
    plan = make_plan(prepared)
    (work,) = counted
    depths = prepared.settings.train.depths
    assert work.depths == depths and work.cells == depths * work.rows and plan.num_taught == work.positions
    places = [torch.from_numpy(document.runs_T) >= 0 for document in prepared.training]
    assert work.positions == sum(int(taught_T.sum()) for taught_T in places)
    assert work.keys == sum(int((1 + taught_T.nonzero()).sum()) for taught_T in places)
    assert work.tokens == plan.num_tokens
