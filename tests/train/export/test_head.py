"""Exported heads: read back bit for bit, what the loaders of other engines ask for, whole folders or none."""

import dataclasses
import json
import resource

import pytest
import torch
from safetensors.torch import load_file
from tests.train.support.exported import FACTS, TARGET, VARIANTS, export, random_head

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.base.errors import UserError
from eyas.base.harmony.rendering import Message
from eyas.base.types import SamplingParams
from eyas.llm import LLM
from eyas.model.checkpoints.eagle3 import inspect_head
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.making.make import make_target
from eyas.train.evaluation.results import Acceptance, Counts, Evaluation
from eyas.train.export.config import tap_ids_for
from eyas.train.export.head import export_head

CPU = torch.device("cpu")
FORMS = ("midlayer", "speculators")
NOT_IN = {"speculators": {"no_fc"}, "midlayer": set()}


def pairs():
    return [(form, variant) for form in FORMS for variant in VARIANTS if variant not in NOT_IN[form]]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = make_target(TARGET, tmp_path_factory.mktemp("target") / "target")
    return load_target(folder, device=CPU, dtype=torch.bfloat16)


@pytest.mark.parametrize(("form", "variant"), pairs())
def test_our_loader_reads_back_every_bit(tmp_path, target, form, variant):
    head = random_head(variant)
    folder = export(head, tmp_path / "head", form)
    loaded = load_head(folder, *target, device=CPU, dtype=torch.bfloat16)
    assert loaded.config == head.config
    weights, state = loaded.weights, head.state_dict()
    matrices = {"lm_head_VH": "lm_head", "o_HN": "midlayer.self_attn.o_proj", "down_HI": "midlayer.mlp.down_proj"}
    for field, name in matrices.items():
        assert torch.equal(getattr(weights, field), state[f"{name}.weight"].bfloat16())
    qkv = torch.cat([state[f"midlayer.self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(weights.qkv_NH, qkv.bfloat16())
    assert torch.equal(weights.norm_H, state["norm.weight"])
    assert weights.embed_VH is target[1].embed_VH
    if head.config.draft_vocab_size < TARGET.vocab_size:
        assert torch.equal(weights.target_ids_V, head.target_ids_V)
    else:
        assert weights.target_ids_V is None
    for name, value in stored(folder).items():
        name = name.replace("layers.0.", "midlayer.")
        assert name in ("d2t", "t2d") or torch.equal(value.float(), state[name])
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert not (tmp_path / "head.partial").exists()


def test_fp32_and_an_embedding_of_its_own(tmp_path, target):
    head = random_head("classic")
    embed = torch.randn(TARGET.vocab_size, head.config.hidden_size)
    folder = export(head, tmp_path / "head", "midlayer", dtype="float32", embed_VH=embed)
    loaded = load_head(folder, *target, device=CPU, dtype=torch.float32)
    assert torch.equal(loaded.weights.embed_VH, embed)
    assert read(folder)["torch_dtype"] == "float32"


def stored(folder):
    return load_file(folder / "model.safetensors")


def read(folder):
    return json.loads((folder / "config.json").read_text())


# -- names, shapes and keys of other engines --------------------------------------------------------------------------


def flag(config, name, default=False):
    """As vLLM and SGLang read it: `eagle_config` before the top for norm_before_fc, the top alone for the others."""
    top = config.get(name, default)
    return config.get("eagle_config", {}).get(name, top) if name == "norm_before_fc" else top


def parameters(config):
    """The parameters that llama_eagle3.py of vLLM 0.33.0 and of SGLang 0.5.23 make of a config, by name."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    width, eagle = config.get("target_hidden_size", hidden), config.get("eagle_config", {})
    count = config.get("num_aux_hidden_states") or len(eagle.get("eagle_aux_hidden_state_layer_ids") or [0] * 3)
    layer = {f"{name}.weight": (hidden,) for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
    layer |= {
        "self_attn.qkv_proj.weight": (query + 2 * key, 2 * hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_up_proj.weight": (2 * inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    made = {f"model.layers.0.{name}": shape for name, shape in layer.items()}
    made |= {"model.norm.weight": (hidden,), "lm_head.weight": (config["draft_vocab_size"], hidden)}
    if eagle.get("use_aux_hidden_state", True):
        made["model.fc.weight"] = (hidden, width * count)
        if flag(config, "norm_before_fc"):
            made["model.input_norm.weight"] = (width * count,)
        if flag(config, "fc_norm"):
            made |= {f"model.fc_norm.{i}.weight": (width,) for i in range(count)}
    if config["draft_vocab_size"] != config["vocab_size"]:
        made["draft_id_to_target_id"] = (config["draft_vocab_size"],)
    return made


def loaded(tensors):
    """What their load_weights make of a file: shapes by parameter, stacked ones added up along the rows."""
    stacks = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
    stacks |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
    found = {}
    for name, tensor in tensors.items():
        if name == "t2d":
            continue
        name = "draft_id_to_target_id" if name == "d2t" else name.replace("midlayer.", "layers.0.")
        if "lm_head" not in name and name != "draft_id_to_target_id":
            name = f"model.{name}"
        for part, stack in stacks.items():
            name = name.replace(f".{part}.", f".{stack}.")
        shape = tuple(tensor.shape)
        found[name] = (found[name][0] + shape[0], *shape[1:]) if name in found else shape
    return found


def as_vllm_reads_speculators(config):
    """`update_eagle3` of vLLM's configs/speculators/algos.py."""
    layer = dict(config["transformer_layer_config"])
    for name in ("draft_vocab_size", "target_hidden_size", "norm_before_fc", "fc_norm", "norm_output"):
        layer[name] = config.get(name, False)
    layer["norm_before_residual"] = config.get("norm_before_residual", True)
    if config.get("eagle_aux_hidden_state_layer_ids"):
        layer["eagle_aux_hidden_state_layer_ids"] = config["eagle_aux_hidden_state_layer_ids"]
    return layer


@pytest.mark.parametrize(("form", "variant"), pairs())
def test_names_shapes_and_switches_are_those_of_vllm_and_sglang(tmp_path, form, variant):
    head = random_head(variant)
    folder = export(head, tmp_path / "head", form, engine="vllm")
    raw, tensors = read(folder), stored(folder)
    config = as_vllm_reads_speculators(raw) if form == "speculators" else raw
    assert loaded(tensors) == parameters(config)
    for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        assert flag(config, name) is getattr(head.config, name)
    assert raw["architectures"] == [{"midlayer": "LlamaForCausalLMEagle3", "speculators": "Eagle3Speculator"}[form]]
    assert config["model_type"] == "llama" and config["hidden_act"] == "silu" and not config["attention_bias"]
    assert config["max_position_embeddings"] == head.config.max_context and config["num_hidden_layers"] == 1
    assert all(value.dtype == torch.bfloat16 for name, value in tensors.items() if name not in ("d2t", "t2d"))
    ids = list(head.config.taps) if variant in ("other_taps", "two_taps") else None
    assert config.get("eagle_aux_hidden_state_layer_ids") == ids
    if form == "midlayer":
        assert raw["tie_word_embeddings"] is False and raw["torch_dtype"] == "bfloat16"
        assert raw.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids") == ids
        assert flag(raw, "norm_before_fc") is raw.get("eagle_config", {}).get("norm_before_fc", False)  # TensorRT-LLM
    else:
        said = raw["speculators_config"]  # what vLLM's validate_speculators_config asks for
        assert said["proposal_methods"][0]["speculative_tokens"] == FACTS.draft_tokens
        assert said["verifier"]["name_or_path"] == FACTS.target
    if "d2t" in tensors:
        ids = tensors["d2t"] + torch.arange(head.config.draft_vocab_size)
        assert torch.equal(ids, head.target_ids_V) and tensors["d2t"].dtype == torch.int64
        assert torch.equal(tensors["t2d"].nonzero()[:, 0], head.target_ids_V) and tensors["t2d"].dtype == torch.bool


def boundaries(engine, ids):
    """The residual streams that the target's captures take for ids, as their sources have it."""
    if engine == "vllm" or (engine == "sglang" and max(ids) == TARGET.num_layers):
        return tuple(ids)
    return tuple(-1 if i == -1 else i + 1 for i in ids)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("taps", [(1, 4, 6), (3, 8), (2, 3, 4)])
def test_ids_are_written_as_the_engine_reads_them(tmp_path, engine, taps):
    config = dataclasses.replace(random_head("classic").config, taps=taps)
    ids = tap_ids_for(config, engine, TARGET)
    assert boundaries(engine, ids) == taps


def test_eyas_reads_other_taps_without_a_hint(tmp_path):
    for form in FORMS:
        head = random_head("other_taps")
        assert inspect_head(export(head, tmp_path / form, form), TARGET)[0].taps == (2, 3, 6)


@pytest.mark.parametrize(
    ("variant", "options", "words"),
    [
        ("norm_before_residual", {"form": "midlayer", "engine": "sglang"}, "has no norm_before_residual"),
        ("norm_before_residual", {"form": "midlayer", "engine": "tensorrt-llm"}, "has no norm_before_residual"),
        ("classic", {"form": "speculators", "engine": "sglang"}, "does not read the speculators form"),
        ("no_fc", {"form": "speculators"}, "always has an fc"),
    ],
)
def test_what_cannot_be_expressed_is_said(tmp_path, variant, options, words):
    with pytest.raises(UserError, match=words):
        export(random_head(variant), tmp_path / "head", **options)
    assert not list(tmp_path.iterdir())


def test_taps_that_eyas_would_read_as_others_need_an_engine(tmp_path):
    head = random_head("classic")
    head.config = dataclasses.replace(head.config, taps=(1, 4, 6))
    with pytest.raises(UserError, match="cannot be written unambiguously"):
        export(head, tmp_path / "head", "midlayer")
    export(head, tmp_path / "head", "midlayer", engine="vllm")


def test_taps_without_ids():
    config = dataclasses.replace(random_head("classic").config, taps=(0, 4, -1))
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        with pytest.raises(UserError, match="has no ids for the taps"):
            tap_ids_for(config, engine, TARGET)


# -- the folder -------------------------------------------------------------------------------------------------------


def test_a_folder_in_use_stays_as_it_is(tmp_path):
    (tmp_path / "head").mkdir()
    with pytest.raises(UserError, match="exists"):
        export(random_head("classic"), tmp_path / "head", "midlayer")
    assert not list((tmp_path / "head").iterdir())


def test_a_full_disk_leaves_nothing(tmp_path):
    head = random_head("classic")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match="cannot be written"):
            export(head, tmp_path / "head", "midlayer")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
    export(head, tmp_path / "head", "midlayer")


def test_values_that_are_not_finite(tmp_path):
    head = random_head("classic")
    with torch.no_grad():
        head.fc.weight[3, 4] = torch.nan
    with pytest.raises(UserError, match=r"fc\.weight holds values that are not finite"):
        export(head, tmp_path / "head", "midlayer")
    assert not list(tmp_path.iterdir())


def test_wrong_tensors_are_a_mistake_of_the_caller(tmp_path):
    head = random_head("classic")
    head.config = dataclasses.replace(head.config, norm_before_fc=True)
    with pytest.raises(ValueError, match=r"input_norm\.weight"):
        export(head, tmp_path / "head", "midlayer")
    head = random_head("classic")
    head.target_ids_V = head.target_ids_V.flip(0)
    with pytest.raises(ValueError, match="ascending"):
        export(head, tmp_path / "head", "midlayer")


# -- the card ---------------------------------------------------------------------------------------------------------


def evaluation():
    def one(drafts):
        counts = Counts(rounds=100.0, tokens=300.0 + drafts)
        return Acceptance(
            draft_tokens=drafts,
            content=counts,
            interval=(2.5, 3.5),
            all_tokens=counts,
            reached=(100.0,) * drafts,
            accepted=(80.0,) * drafts,
            by_context={"0-1K": counts, "1-4K": counts},
            by_segment={"final": counts},
        )

    acceptance = {name: (one(1), one(2)) for name in ("text", "target", "sampled")}
    return Evaluation(num_documents=30, num_tokens=400, num_in_vocabulary=396, temperature=1.0, acceptance=acceptance)


def test_card_says_what_was_done(tmp_path):
    facts = dataclasses.replace(FACTS, evaluation=evaluation().json(), draft_tokens=2)
    folder = export(random_head("other_taps"), tmp_path / "head", "midlayer", engine="vllm", facts=facts)
    text = (folder / "README.md").read_text()
    for words in (FACTS.data_hash, "steps: 1,200", "2 CPU cores", "| 2 | 3.02 (2.50..3.50) |", "1-4K 3.02"):
        assert words in text
    assert "vLLM: yes, with the layer ids [2, 3, 6]" in text
    assert "SGLang: needs the layer ids [1, 2, 5]" in text
    assert "/home" not in text and '"chats.jsonl"' in text
    assert "license: choose one" in text
    assert json.loads((folder / "evaluation.json").read_text()) == evaluation().json()


def test_card_without_an_evaluation(tmp_path):
    folder = export(random_head("norm_before_residual"), tmp_path / "head", "speculators")
    text = (folder / "README.md").read_text()
    assert "Not evaluated." in text and "SGLang: no, it does not read the speculators form" in text


# -- the engine -------------------------------------------------------------------------------------------------------


def answers_of_the_demo(draft):
    """Answers of a real engine, greedy and sampled, and how many drafts were accepted."""
    llm = LLM("demo", draft=draft, draft_tokens=4, context=512, device="cpu")
    questions = ["What does textwrap.dedent do?", "Explain bisect.insort in one sentence."]
    chats = [[Message(role="user", content=question)] for question in questions]
    params = [SamplingParams(temperature=t, seed=3, max_tokens=30) for t in (0.0, 1.0)]
    found = [x.outputs[0].token_ids for p in params for x in llm.chat(chats, p)]
    return found, llm.stats().num_accepted_tokens


@pytest.mark.parametrize("form", ["midlayer", pytest.param("speculators", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_engine_drafts_with_it_and_writes_the_tokens_it_would_without(tmp_path, form):
    target = load_target(DEMO, device=CPU, dtype=torch.float32)[0]
    head = load_file(DEMO / OWN_HEAD / "model.safetensors")
    config = inspect_head(DEMO / OWN_HEAD, target)[0]
    ids = head.pop("d2t") + torch.arange(config.draft_vocab_size)
    head.pop("t2d")
    facts = dataclasses.replace(FACTS, target="demo")
    export_head(config, head, ids, tmp_path / form, form=form, target=target, facts=facts)
    answers, num_accepted = answers_of_the_demo(str(tmp_path / form))
    assert num_accepted > 20
    assert (answers, 0) == answers_of_the_demo("none")
