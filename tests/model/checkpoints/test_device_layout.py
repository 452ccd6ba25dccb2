"""Shapes that the kernels have, and those that they would refuse later; copies of attention's matrices."""

from dataclasses import replace

import pytest
import torch

from eyas.model.checkpoints import eagle3
from eyas.model.checkpoints.device_layout import (
    add_copies,
    has_device_layout,
    num_copies,
    remove_copies,
    unread_bytes,
)
from eyas.model.making.presets import PRESETS, default_head
from eyas.model.making.random_weights import random_target
from eyas.model.weights import num_bytes

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


def test_attention_has_copies_where_they_pay():
    shape = replace(PRESETS["tiny"], hidden_size=64, num_heads=8, num_kv_heads=1, head_dim=64, num_experts=16)
    target = random_target(shape, torch.device("cpu"))
    target.layers[1].o_HN.data.copy_((torch.randn(target.layers[1].o_HN.data.shape) * 9).exp())
    copied = add_copies(target)
    assert num_copies(copied) == 2 * shape.num_layers - 1 and copied.layers[1].o_HN.tiles12 is None
    assert copied.layers[0].router_EH.tiles12 is copied.lm_head_VH.tiles12 is None
    added = num_bytes(copied) - num_bytes(target)
    assert added > 0
    assert num_copies(remove_copies(copied)) == num_copies(target) == unread_bytes(target, 1) == 0
    matrices = [matrix for layer in copied.layers for matrix in (layer.qkv_NH, layer.o_HN)]
    assert unread_bytes(copied, 17) == added
    assert unread_bytes(copied, 16) == sum(matrix.data.nbytes for matrix in matrices if matrix.tiles12 is not None)
