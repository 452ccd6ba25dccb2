"""States of a target on another device: what a head trains on is the same, wherever it was made."""

import pytest
import torch
from tests.train.support import toy

from eyas.base.errors import UserError
from eyas.train.data.packing import Packing
from eyas.train.settings.reading import read_settings
from eyas.train.settings.schema import TrainSettings
from eyas.train.states.moved import MovedStates
from eyas.train.steps.processes import Processes
from eyas.train.steps.trainer import Trainer


def batch(tokens=100):
    return Packing(toy.documents(9), tokens=tokens, seed=1).batch(0, 0)


def test_states_and_teacher_are_on_the_head_s_device():
    source = toy.TableStates()
    source.labels_only, source.fingerprint = False, "toy"
    moved = MovedStates(source, torch.device("meta"))
    found, made = moved.states(batch()), source.states(batch())
    assert {x.device.type for x in (*moved.teacher, found.taps_TC, found.last_TH)} == {"meta"}
    assert (found.taps_TC.shape, found.last_TH.shape) == (made.taps_TC.shape, made.last_TH.shape)
    assert found.best_T is None and (moved.taps, moved.fingerprint) == (source.taps, "toy")
    assert {x.device.type for x in source.teacher} == {"cpu"}


def test_a_head_trains_to_the_same_bits():
    heads = []
    for is_moved in (False, True):
        source = toy.TableStates()
        source.labels_only, source.fingerprint = False, "toy"
        head = toy.head()
        trainer = Trainer(
            head, MovedStates(source, torch.device("cpu")) if is_moved else source, TrainSettings(depths=3),
            rule="loose", num_steps=3, processes=Processes(),
        )  # fmt: skip
        for number in range(3):
            trainer.step(number, [batch()])
        heads.append(head.state_dict())
    assert all(torch.equal(value, heads[1][name]) for name, value in heads[0].items())


def test_devices_that_do_not_go_together(monkeypatch):
    from eyas.train.loop import prepared

    monkeypatch.setattr(prepared, "pick_device", lambda name: (torch.device(name), torch.bfloat16))
    target = torch.device("cuda", 0)
    assert prepared._head_device("cuda:1", target) == torch.device("cuda", 1)
    with pytest.raises(UserError, match=r"train\.device is cpu, the target is on cuda:0"):
        prepared._head_device("cpu", target)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="goes with one process"):
        prepared._head_device("cuda:1", target)


def test_the_device_is_a_setting(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("train: {device: cuda:1}")
    assert read_settings(path).train.device == "cuda:1"
