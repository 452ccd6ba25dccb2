"""Copies of attention's matrices: made where they are asked for, refused where nothing reads them."""

from dataclasses import replace

import pytest
import torch

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.engine.startup.decode_weights import check_decode_weights, fit_decode_weights
from eyas.engine.startup.load import load_model
from eyas.model.checkpoints.device_layout import num_copies
from eyas.model.making.presets import PRESETS
from eyas.model.making.random_weights import random_target

SHAPE = replace(PRESETS["tiny"], hidden_size=64, num_heads=8, num_kv_heads=1, head_dim=64, num_experts=16)


@pytest.fixture(scope="module")
def target():
    return random_target(SHAPE, torch.device("cpu"))


@pytest.mark.parametrize(("setting", "makes"), [("12bit", True), ("bf16", False)])
def test_copies_by_setting(target, setting, makes):
    fitted = fit_decode_weights(EngineConfig(decode_weights=setting), target)
    assert num_copies(fitted) == (2 * SHAPE.num_layers if makes else 0)
    assert makes or fitted is target


def test_matrices_that_stay_as_they_are_are_counted(target, caplog):
    data = target.layers[0].qkv_NH.data
    scattered = replace(target.layers[0].qkv_NH, data=(torch.randn(data.shape) * 9).exp().bfloat16())
    layers = (replace(target.layers[0], qkv_NH=scattered), *target.layers[1:])
    fitted = fit_decode_weights(EngineConfig(decode_weights="12bit"), replace(target, layers=layers))
    assert num_copies(fitted) == 2 * SHAPE.num_layers - 1
    assert f"1 of {2 * SHAPE.num_layers} matrices of attention stay in bf16" in caplog.text


def test_a_cpu_reads_no_copies():
    with pytest.raises(UserError, match="12bit is for the kernels of a GPU"):
        load_model(EngineConfig(device="cpu", decode_weights="12bit"))
    check_decode_weights(EngineConfig(), has_kernels=False)
    assert num_copies(load_model(EngineConfig(device="cpu")).weights) == 0
