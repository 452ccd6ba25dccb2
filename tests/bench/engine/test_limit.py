"""Bytes of a round against sums over the files' own tensors."""

from collections import Counter

import pytest

from eyas.base.settings.config import EngineConfig
from eyas.bench.engine.arms import Arm
from eyas.bench.engine.limit import read_limit, round_limit
from eyas.bench.engine.rounds import Acceptance
from eyas.engine.draft_length.choice import FixedDraftLength
from eyas.local import load_model
from eyas.model.weights import tensors_of


@pytest.fixture(scope="module")
def model(model_folder):
    return load_model(EngineConfig(model=str(model_folder), draft=str(model_folder / "eagle3"), device="cpu"))


def limit(model, *, experts, drafts, context=0.0, batch=1):
    counts = Acceptance(histogram=Counter({1: 10}), num_drafts=10 * drafts)
    arm = Arm(tiles="tiled", drafts=drafts, core=None, draft_length=FixedDraftLength(0), counts=counts, experts=experts)
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
    head = model.head.weights
    read = sum(tensor.nbytes for tensor in tensors_of(head)) - head.embed_VH.nbytes - head.target_ids_V.nbytes
    one, three = (limit(model, experts=1, drafts=drafts).head for drafts in (1, 3))
    assert one == read and three == 3 * read - 2 * head.fc_HC.nbytes
    assert short.seconds == short.num_bytes / 1e9 and short.json()["ms"] > 0


def test_a_cpu_has_no_limit(model):
    assert read_limit(model) is None
