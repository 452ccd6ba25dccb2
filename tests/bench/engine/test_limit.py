"""Bytes of a round against sums over the files' own tensors."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from eyas.base.settings.config import EngineConfig
from eyas.bench.engine.arms import Arm
from eyas.bench.engine.limit import read_limit, round_limit
from eyas.bench.engine.rounds import Acceptance
from eyas.engine.draft_length.choice import FixedDraftLength
from eyas.engine.round.stages import Stages
from eyas.engine.startup.build import EngineOptions
from eyas.local import load_model
from eyas.model.checkpoints.device_layout import add_copies, unread_bytes
from eyas.model.making.presets import PRESETS
from eyas.model.making.random_weights import random_target
from eyas.model.weights import tensors_of


@pytest.fixture(scope="module")
def model(model_folder):
    return load_model(EngineConfig(model=str(model_folder), draft=str(model_folder / "eagle3"), device="cpu"))


def limit(model, *, experts, drafts, context=0.0, batch=1, tiles="tiled", screen=None):
    core = SimpleNamespace(runner=SimpleNamespace(stages=Stages(), screen=screen))
    counts = Acceptance(histogram=Counter({1: 10}), num_drafts=10 * drafts)
    arm = Arm(tiles=tiles, drafts=drafts, core=core, draft_length=FixedDraftLength(0), counts=counts, experts=experts)
    return round_limit(model, arm, context=context, batch=batch, bandwidth=1e9)


def test_weights_and_experts(model):
    everything = sum(tensor.nbytes for tensor in tensors_of(model.weights)) - model.weights.embed_VH.nbytes
    experts = model.config.num_experts
    assert limit(model, experts=experts, drafts=0).weights == everything
    one, two, three = (limit(model, experts=n, drafts=0).weights for n in (1, 2, 3))
    assert 0 < two - one == pytest.approx(three - two) == pytest.approx((everything - one) / (experts - 1))


def test_keys_and_values_and_the_head(model):
    config = model.config
    token = 2 * config.num_kv_heads * config.head_dim * 4
    short = limit(model, experts=1, drafts=0, context=3, batch=2)
    assert (short.keys_and_values, short.head) == (2 * 3 * config.num_layers * token, 0)
    long = limit(model, experts=1, drafts=0, context=1000 + config.sliding_window)
    windows = sum(config.layer_is_sliding)
    assert long.keys_and_values == token * (
        config.num_layers * config.sliding_window + 1000 * (config.num_layers - windows)
    )
    rounded = replace(model, options=replace(model.options, kv_dtype="fp8"))
    eighth = limit(rounded, experts=1, drafts=0, context=3, batch=2).keys_and_values
    assert eighth * config.head_dim * 4 == short.keys_and_values * (config.head_dim + 1)
    head = model.head.weights
    read = sum(tensor.nbytes for tensor in tensors_of(head)) - head.embed_VH.nbytes - head.target_ids_V.nbytes
    one, three = (limit(model, experts=1, drafts=drafts).head for drafts in (1, 3))
    assert one == read and three == 3 * read - 2 * head.fc_HC.nbytes
    assert short.seconds == short.num_bytes / 1e9 and short.json()["ms"] > 0


def test_of_two_copies_a_round_reads_one():
    shape = replace(PRESETS["tiny"], hidden_size=64, num_heads=8, num_kv_heads=1, head_dim=64, num_experts=16)
    target = random_target(shape, torch.device("cpu"))
    options = EngineOptions(drafter="none", context=64)
    plain, copied = (
        SimpleNamespace(weights=weights, config=shape, head=None, options=options)
        for weights in (target, add_copies(target))
    )
    everything = limit(plain, experts=4, drafts=0).weights
    saved = unread_bytes(copied.weights, 1) - unread_bytes(copied.weights, 100)
    assert 0 < saved == everything - limit(copied, experts=4, drafts=1, batch=8).weights
    assert limit(copied, experts=4, drafts=1, batch=9).weights == everything
    assert limit(copied, experts=4, drafts=0, tiles="bf16").weights == everything


def test_of_a_screened_lm_head_a_small_round_reads_its_copy(model):
    screen = SimpleNamespace(max_rows=8, nbytes=1000)
    saved = model.weights.lm_head_VH.nbytes - 1000
    whole, screened = (limit(model, experts=1, drafts=3, batch=2, screen=one).weights for one in (None, screen))
    assert whole - screened == saved > 0
    assert limit(model, experts=1, drafts=3, batch=3, screen=screen).weights == whole


def test_a_cpu_has_no_limit(model):
    assert read_limit(model) is None
