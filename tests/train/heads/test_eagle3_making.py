"""EAGLE-3 heads as a run makes them: sizes from settings, a published head as it lies on the disk."""

import json
import shutil

import pytest
import torch
from tests.train.support.small_run import BUNDLED

from eyas.base.errors import UserError
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, default_head
from eyas.train.heads.eagle3_making import EAGLE3_MAKING as MAKING
from eyas.train.heads.registry import find_making
from eyas.train.settings.schema import HeadSettings
from eyas.train.states.opening import find_target, open_target

TINY = PRESETS["tiny"]


@pytest.fixture(scope="module")
def demo():
    return find_target("demo", device="cpu").config


def with_ids(folder, ids):
    shutil.copytree(BUNDLED, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eagle_aux_hidden_state_layer_ids": ids}))
    return folder


@pytest.mark.parametrize(
    ("ids", "readings"),
    [
        (None, {"certain": (2, 4, 5)}),
        ([2, 4, 5], {"certain": (2, 4, 5)}),  # the default boundaries
        ([1, 3, 4], {"boundary": (1, 3, 4), "output": (2, 4, 5)}),
        ([3, 5, 7], {"boundary": (3, 5, 7), "output": (4, 6, 8)}),
        ([1, 4, 8], {"certain": (1, 4, 8)}),  # there is no output of layer 8
    ],
)
def test_ids_have_one_meaning_or_two(tmp_path, demo, ids, readings):
    folder = BUNDLED if ids is None else with_ids(tmp_path / "head", ids)
    assert MAKING.tap_readings(folder, demo) == readings


def test_a_config_from_headers_is_that_of_the_loaded_head(demo):
    config = MAKING.checkpoint_config(BUNDLED, demo)
    source = open_target(find_target("demo", device="cpu"), taps=config.taps, longest=16)
    head = MAKING.from_checkpoint(BUNDLED, config.taps, demo, source.teacher, num_depths=2)
    assert head.config == config and head.num_depths == 2
    assert MAKING.num_parameters(config) == sum(parameter.numel() for parameter in head.parameters())
    assert all(parameter.dtype == torch.float32 for parameter in head.parameters())


def test_the_config_of_a_record_reads_back(demo):
    from dataclasses import asdict

    config = MAKING.checkpoint_config(BUNDLED, demo)
    assert MAKING.read_config(json.loads(json.dumps(asdict(config)))) == config


def test_a_fresh_head_is_that_of_its_seed(tmp_path):
    target = make_target(TINY, tmp_path / "target", seed=1)
    source = open_target(find_target(str(target), device="cpu"), taps=(2,), longest=16)
    config = MAKING.fresh_config(HeadSettings(draft_vocab=32, intermediate_size=16), TINY, context=64)
    state = torch.random.get_rng_state()
    heads = [MAKING.fresh(config, torch.arange(32), source.teacher, num_depths=1, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.random.get_rng_state(), state)  # of the process
    weights = [head.state_dict()["fc.weight"] for head in heads]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert torch.equal(heads[0].state_dict()["lm_head.weight"], source.teacher.lm_head_VH[:32].float())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"taps": (2, 2)}, "head.taps wants different boundaries from 0 to"),
        ({"taps": ()}, "head.taps wants different boundaries"),
        ({"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ({"num_kv_heads": 3}, "are impossible"),
        ({"head_dim": 7}, "are impossible"),
    ],
)
def test_sizes_that_do_not_fit(settings, said):
    with pytest.raises(UserError, match=said):
        MAKING.fresh_config(HeadSettings(**settings), TINY, context=64)


def test_a_head_of_another_target(tmp_path, demo):
    head = make_head(default_head(TINY), tmp_path / "head", target=TINY)
    with pytest.raises(UserError, match="hidden"):
        MAKING.checkpoint_config(head, demo)


def test_kinds_have_names():
    assert find_making("eagle3") is MAKING
    with pytest.raises(UserError, match=r"no kind 'eagel3' can be trained \(did you mean 'eagle3'\?\)"):
        find_making("eagel3")
