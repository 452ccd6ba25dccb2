"""Random checkpoints: loadable by transformers, sharded and named as published, deterministic, worth computing."""

import json
import shutil
from dataclasses import replace
from math import prod

import pytest
import torch
import transformers
from safetensors.torch import load_file

from eyas.base.errors import UserError
from eyas.model.checkpoints.names import all_parts
from eyas.model.checkpoints.shards import read_headers
from eyas.model.config import GptOssConfig
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, default_head, head_of_kind, parse_shape

TINY = PRESETS["tiny"]


def contents(folder):
    return {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}


def stored_bytes(config: GptOssConfig) -> int:
    size = {"BF16": 2, "U8": 1}
    return sum(prod(part.shape) * size[part.dtype] for _, _, _, parts in all_parts(config, "hf") for part in parts)


def test_sharding_changes_names_of_files_and_nothing_else(tmp_path):
    one = make_target(TINY, tmp_path / "one")
    many = make_target(TINY, tmp_path / "many", shard_bytes=200_000)
    files = sorted(path.name for path in many.glob("*.safetensors"))
    last = len(files) - 1
    assert last > 3 and files == [f"model-{i:05d}-of-{last:05d}.safetensors" for i in range(last + 1)]
    index = json.loads((many / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == stored_bytes(TINY)
    assert index["weight_map"] == {name: tensor.file for name, tensor in sorted(read_headers(many).items())}
    assert max((many / file).stat().st_size for file in files) < 220_000
    assert [path.name for path in one.glob("*.safetensors")] == ["model.safetensors"]
    first, second = contents(one), contents(many)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_seed_decides(tmp_path):
    folders = [make_target(TINY, tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    first, again, other = (contents(folder) for folder in folders)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("tie", [False, True])
def test_transformers_computes_the_same_from_packed_and_dense(tmp_path, tie):
    config = replace(TINY, tie_embeddings=tie)
    packed = make_target(config, tmp_path / "packed")
    dense = make_target(replace(config, expert_format="dense"), tmp_path / "dense")
    load = transformers.AutoModelForCausalLM.from_pretrained
    ours = load(packed, quantization_config=transformers.Mxfp4Config(dequantize=True)).float()
    theirs = load(dense, dtype=torch.float32)
    ids = torch.randint(0, 500, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
    assert theirs.generation_config.eos_token_id == [510, 509]


def test_the_model_computes_something(tmp_path):
    """Logits spread over a few units, follow the prompt, and the router uses all experts."""
    folder = make_target(replace(TINY, expert_format="dense"), tmp_path / "dense")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.randint(0, 500, (1, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = model(ids, output_router_logits=True, output_hidden_states=True)
    assert 1.5 < out.logits.std(-1).mean() < 6
    assert out.logits[0].argmax(-1).unique().numel() > 30
    for router in out.router_logits:
        chosen = router.topk(4, dim=-1).indices.flatten().bincount(minlength=8)
        assert (chosen > 0).all()
    rms = [hidden.pow(2).mean().sqrt() for hidden in out.hidden_states]
    assert all(0.5 < value < 10 for value in rms)


@pytest.mark.parametrize("style", ["hf", "original"])
def test_refuses_to_overwrite_and_leaves_nothing_half_made(tmp_path, style):
    folder = make_target(TINY, tmp_path / "model", style=style)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="model exists; choose another --out or delete it"):
        make_target(TINY, folder, style=style, seed=5)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    (tmp_path / "other.partial").mkdir()
    with pytest.raises(UserError, match=r"other.partial exists"):
        make_target(TINY, tmp_path / "other")


def test_too_little_room(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1000))
    with pytest.raises(UserError, match=r"needs 0.0 GB, but the disk has 0.0 GB free"):
        make_target(TINY, tmp_path / "model")


def test_progress_ends_at_the_whole(tmp_path):
    steps = []
    make_target(TINY, tmp_path / "model", shard_bytes=200_000, progress=lambda done, total: steps.append((done, total)))
    done = [step[0] for step in steps]
    assert done == sorted(done) and steps[-1] == (stored_bytes(TINY),) * 2


def test_draft_vocabulary_keeps_the_end_tokens(tmp_path):
    folder = make_head(default_head(TINY, draft_vocab_size=40), tmp_path / "head", target=TINY)
    tensors = contents(folder)
    ids = tensors["d2t"] + torch.arange(40)
    assert set(TINY.eos_ids) <= set(ids.tolist()) and (ids.diff() > 0).all()
    assert torch.equal(tensors["t2d"].nonzero().squeeze(1), ids)


def test_files_of_each_kind_of_head(tmp_path):
    held = {}
    for kind in ("specforge", "final-norm", "norm-before-fc", "fc-norm", "speculators"):
        config, style = head_of_kind(kind, TINY)
        held[kind] = set(contents(make_head(config, tmp_path / kind, target=TINY, style=style)))
    assert {"fc.weight", "midlayer.hidden_norm.weight", "d2t", "t2d", "lm_head.weight"} <= held["specforge"]
    assert not held["final-norm"] & {"fc.weight", "d2t", "t2d", "embed_tokens.weight"}
    assert "layers.0.hidden_norm.weight" in held["final-norm"]
    assert "input_norm.weight" in held["norm-before-fc"] & held["speculators"]
    assert {f"fc_norm.{i}.weight" for i in range(3)} <= held["fc-norm"]


def test_heads_that_cannot_be():
    with pytest.raises(UserError, match="needs its own lm_head"):
        make_head(default_head(TINY), None, target=TINY, own_lm_head=False)
    with pytest.raises(UserError, match=r"no head 'fc_norm' \(did you mean 'fc-norm'\?\)"):
        head_of_kind("fc_norm", TINY)


def test_shapes_from_words():
    assert parse_shape(["gpt-oss-20b"]) == PRESETS["gpt-oss-20b"]
    shape = parse_shape(["tiny", "num_layers=3", "vocab_size=100", "swiglu_limit=2.5", "expert_format=dense"])
    assert shape.layer_is_sliding == (True, False, True) and shape.eos_ids == (98, 97) and shape.pad_id == 99
    assert shape.swiglu_limit == 2.5 and shape.expert_format == "dense"
    assert parse_shape(["tie_embeddings=true"]) == replace(TINY, tie_embeddings=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tinny"], r"no shape 'tinny' \(did you mean 'tiny'\?\)"),
        (["tiny", "num_layer=3"], r"'num_layer=3': no such field \(did you mean 'num_layers'\?\)"),
        (["tiny", "num_layers=x", "foo"], "'num_layers=x': num_layers wants a whole number; 'foo': no such field"),
        (["tiny", "hidden_size=50"], "hidden_size 50 is no multiple of 32"),
        (["tiny", "num_heads=0"], "num_attention_heads is 0"),
        (["tiny", "tie_embeddings=maybe"], "tie_embeddings wants true or false"),
        (["tiny", "expert_format=int8"], "expert_format wants mxfp4 or dense"),
        (["tiny", "experts_per_token=9"], "9 experts per token, but only 8"),
    ],
)
def test_wrong_shapes(words, message):
    with pytest.raises(UserError, match=message):
        parse_shape(words)
