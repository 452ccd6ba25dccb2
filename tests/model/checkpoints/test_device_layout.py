"""Shapes that the kernels have, and those that they would refuse later."""

from dataclasses import replace

import pytest

from eyas.model.checkpoints import eagle3
from eyas.model.checkpoints.device_layout import has_device_layout
from eyas.model.making.presets import PRESETS, default_head

TARGET = PRESETS["gpt-oss-20b"]


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_the_kernels_have_the_published_shapes(name):
    assert has_device_layout(PRESETS[name])
    assert eagle3.has_device_layout(default_head(PRESETS[name]))


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": 128},
        {"num_kv_heads": 32},
        {"hidden_size": 2888},
        {"hidden_size": 4640},
        {"intermediate_size": 8224},
        {"sliding_window": 129},
        {"experts_per_token": 5},
        {"num_experts": 144},
        {"num_experts": 36},
        {"vocab_size": 201090},
        {"expert_format": "dense"},
    ],
    ids=str,
)
def test_plain_operations_compute_what_they_lack(change):
    assert not has_device_layout(replace(TARGET, **change))


def test_shapes_at_the_limits():
    shape = replace(TARGET, hidden_size=4608, intermediate_size=8192, sliding_window=128, num_experts=128)
    assert has_device_layout(shape)
    assert has_device_layout(replace(TARGET, sliding_window=4096, layer_is_sliding=(False,) * TARGET.num_layers))


def test_a_head_may_be_as_wide_as_a_target():
    head = default_head(TARGET)
    assert eagle3.has_device_layout(replace(head, hidden_size=4608, intermediate_size=27648))
    assert not eagle3.has_device_layout(replace(head, hidden_size=4640, intermediate_size=27648))
