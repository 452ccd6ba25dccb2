"""Heads as settings ask for them, in the form of a GPU's kernels: packing and drawing need no GPU."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.model.support.random_gguf import write_tokenizer

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.engine.drafters.registry import DRAFTERS
from eyas.engine.startup import load, random_model
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.model.checkpoints.device_layout import has_device_layout, is_packed
from eyas.model.checkpoints.head_kinds import HEAD_KINDS
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, default_head
from eyas.model.making.random_weights import RANDOM_HEADS, random_target
from eyas.model.weights import tensors_of

SHAPE = replace(PRESETS["tiny"], hidden_size=64, num_heads=8, num_kv_heads=1, head_dim=64, num_experts=16)
PACKED = ("fc_HC", "qkv_NH", "o_HN", "gate_up_IH", "down_HI", "lm_head_VH")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target whose shape the kernels have, and heads for it: one with its own lm_head, one that shares it."""
    assert has_device_layout(SHAPE)
    folder = make_target(SHAPE, tmp_path_factory.mktemp("packed") / "target")
    write_tokenizer(folder)
    make_head(default_head(SHAPE), folder / "own", target=SHAPE)
    full = default_head(SHAPE, draft_vocab_size=SHAPE.vocab_size)
    make_head(full, folder / "shared", target=SHAPE, own_lm_head=False)
    make_head(default_head(SHAPE, intermediate_size=100), folder / "odd", target=SHAPE)
    return folder


@pytest.fixture
def loaded(folder, monkeypatch):
    def loaded(head, *, has_kernels=True, **options):
        monkeypatch.setattr(load, "can_use_kernels", lambda *args: has_kernels)
        config = EngineConfig(model=str(folder), draft=str(folder / head), device="cpu", draft_tokens=3, **options)
        return load.load_model(config)

    return loaded


def test_a_head_is_packed_with_its_target(loaded):
    plain, packed = loaded("own", has_kernels=False), loaded("own")
    assert is_packed(packed.weights) and not is_packed(plain.weights)
    assert packed.options.drafter == plain.options.drafter == "eagle3"
    for name in PACKED:
        matrix = getattr(packed.head.weights, name)
        expected = BlockedMatrix.pack(getattr(plain.head.weights, name), gated=name == "gate_up_IH")
        assert matrix.gated == expected.gated
        assert all(map(torch.equal, tensors_of(matrix), tensors_of(expected)))
    for name in ("embed_VH", "norm_H", "target_ids_V", "hidden_norm_H"):
        assert torch.equal(getattr(packed.head.weights, name), getattr(plain.head.weights, name))


def test_a_shared_lm_head_is_packed_once(loaded):
    model = loaded("shared")
    assert model.head.weights.lm_head_VH is model.weights.lm_head_VH and is_packed(model.weights)


@pytest.mark.parametrize("has_kernels", [False, True])
def test_a_smaller_vocabulary_in_8_bits(loaded, has_kernels):
    model = loaded("own", has_kernels=has_kernels, draft_vocab=64, draft_weights="fp8")
    weights = model.head.weights
    assert model.head.config.draft_vocab_size == len(weights.target_ids_V) == 64
    assert {*SHAPE.eos_ids} <= {*weights.target_ids_V.tolist()}
    assert isinstance(weights.lm_head_VH, BlockedMatrix) == has_kernels
    if has_kernels:
        assert weights.lm_head_VH.factors_N is not None and weights.qkv_NH.factors_N is None


def test_shapes_that_the_kernels_lack(loaded, folder):
    with pytest.raises(UserError) as caught:
        loaded("odd")
    assert str(caught.value) == f"{folder / 'odd'}: the kernels of this GPU cannot compute a head of these shapes"


@pytest.fixture
def drawn(monkeypatch):
    """`random_model` of the small shape, as if this machine had a GPU."""
    cpu, draw = torch.device("cpu"), RANDOM_HEADS["eagle3"]
    monkeypatch.setattr(random_model, "PRESETS", {"small": SHAPE})
    monkeypatch.setattr(random_model, "pick_device", lambda name: (torch.device("cuda", 0), torch.bfloat16))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(random_model, "check_room", lambda *args, **options: None)
    draw_target = partial(random_target, device=cpu)
    monkeypatch.setattr(random_model, "random_target", lambda target, _, **options: draw_target(target, **options))
    monkeypatch.setitem(RANDOM_HEADS, "eagle3", lambda target, weights, _, size: draw(target, weights, cpu, size))
    return lambda **options: random_model.random_model("small", EngineConfig(model="", draft_tokens=3, **options))


def test_shapes_are_drawn_with_the_head_that_draft_names(drawn):
    assert drawn().head is None and drawn(draft="ngram").options.drafter == "ngram"
    model = drawn(draft="eagle3", draft_vocab=64, draft_weights="fp8")
    weights = model.head.weights
    assert model.options.drafter == "eagle3" and is_packed(model.weights) and model.simulated
    assert model.head.config == default_head(SHAPE, draft_vocab_size=64) and len(weights.target_ids_V) == 64
    assert weights.lm_head_VH.factors_N is not None and weights.qkv_NH.factors_N is None
    assert drawn(draft="eagle3").head.config == default_head(SHAPE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_vocab": 40}, "small can have a draft vocabulary of multiples of 16 up to 512"),
        ({"draft_vocab": 528}, "small can have a draft vocabulary of multiples of 16 up to 512"),
        ({"draft_vocab": 64, "draft_counts": "x"}, "leave out --draft-counts"),
        ({"draft": "none", "draft_vocab": 64}, "are for a draft head"),
        ({"draft": "lmsys/head"}, "have no head 'lmsys/head'; --draft names a kind: eagle3"),
    ],
    ids=str,
)
def test_heads_that_no_shape_is_drawn_with(drawn, options, message):
    with pytest.raises(UserError, match=message):
        drawn(**{"draft": "eagle3"} | options)


def test_a_kind_without_random_weights(drawn, monkeypatch):
    monkeypatch.delitem(RANDOM_HEADS, "eagle3")
    with pytest.raises(UserError, match="no random weights of an EAGLE-3 head can be drawn"):
        drawn(draft="eagle3")


def test_every_drafter_with_a_head_has_a_kind_of_head():
    assert {name for name, drafter in DRAFTERS.items() if drafter.has_head} == set(HEAD_KINDS) >= set(RANDOM_HEADS)
