"""TensorRT-LLM's commands and YAML files: each published set-up, names by version, and nothing that a version lacks."""

from importlib.resources import files

import msgspec
import pytest
import yaml

from eyas.recipes.engines import flags
from eyas.recipes.engines.tensorrt_llm import CONFIG, emit
from eyas.recipes.estimate.kv import STEP_TOKENS
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Choice, Home, Node
from eyas.recipes.versions import compare

IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc12"
VERSIONS = ("1.2.0rc6", "1.2.1", "1.3.0rc6", "1.3.0rc12", "1.3.0rc13", "1.4.0rc1")
SPARKS = (Node(name="a", address="192.168.200.12"), Node(name="b", ssh="me@b", address="192.168.200.13"))


def emission(model="gpt-oss-120b", box="spark", head=None, **changes):
    known = knowledge()
    machine = parse_box(box)
    chosen = known.head(head) if head else None
    nodes = SPARKS if machine.nodes == 2 else (Node(name="here"),)
    settings = {
        "model": known.model(model).name,
        "engine": "tensorrt-llm",
        "version": "1.3.0rc12",
        "image": IMAGE,
        "method": chosen.kind if chosen else "none",
        "head": chosen.name if chosen else None,
        "draft_tokens": 3 if chosen else 0,
        "context": 32768,
        "concurrency": 1,
        "memory_fraction": 0.9,
        "tensor_parallel": machine.num_gpus,
        "nodes": nodes,
        "port": 8000,
        "cache": Home(".cache/huggingface"),
        "directory": Home(".local/share/eyas/x"),
        "name": "x",
    }
    return emit(Choice(**(settings | changes)), machine, known.model(model), chosen)


def config_of(emission):
    return yaml.safe_load(next(file.content for file in emission.files if file.path == CONFIG))


def server_of(emission):
    return emission.launches[-1]


def option(argv, name):
    return argv[argv.index(name) + 1]


EVERYTHING = [
    ("gpt-oss-120b", "spark", "nvidia/gpt-oss-120b-Eagle3-long-context"),
    ("gpt-oss-120b", "spark", None),
    ("llama-3.3-70b-fp4", "spark", "nvidia/Llama-3.1-8B-Instruct-FP4"),
    ("gpt-oss-120b", "rtx-pro-6000", "nvidia/gpt-oss-120b-Eagle3-long-context"),
    ("gpt-oss-120b", "8xb200", "nvidia/gpt-oss-120b-Eagle3"),
    ("gpt-oss-120b", "8xgb200", "nvidia/gpt-oss-120b-Eagle3-v3"),
    ("gpt-oss-120b", "b200", "nvidia/gpt-oss-120b-Eagle3-throughput"),
    ("gpt-oss-20b", "h100", None),
    ("qwen3-235b-a22b-fp4", "2xspark", "nvidia/Qwen3-235B-A22B-Eagle3"),
    ("gpt-oss-120b", "2xspark", "nvidia/gpt-oss-120b-Eagle3-long-context"),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("model", "box", "head"), EVERYTHING)
@pytest.mark.parametrize("changes", [{}, {"concurrency": 8, "kv_dtype": "fp8", "tools": False, "expert_parallel": 4}])
def test_every_option_and_key_is_one_that_the_version_has(model, box, head, version, changes):
    made = emission(model, box, head, version=version, **changes)
    argv = server_of(made).argv
    flags.check("tensorrt-llm", version, argv[argv.index("--backend") :])
    table = table_of(version)
    assert {f"yaml {key}" for key in keys_of(config_of(made))} <= table


def table_of(version):
    """The nearest table at or below the version, read without the code under test."""
    folder = files("eyas.recipes") / "data" / "flags" / "tensorrt-llm"
    names = [entry.name.removesuffix(".txt") for entry in folder.iterdir()]
    best = None
    for name in names:
        if compare(name, version) <= 0 and (best is None or compare(name, best) > 0):
            best = name
    return set((folder / f"{best}.txt").read_text().splitlines())


def keys_of(config):
    for key, value in config.items():
        yield key
        if isinstance(value, dict):
            kind = f"[{value['decoding_type']}]" if key == "speculative_config" else ""
            yield from (f"{key}{kind}.{inner}" for inner in value)


@pytest.mark.parametrize(
    ("version", "eagle", "draft", "model_key", "config"),
    [
        ("1.2.0rc6", "Eagle", "DraftTarget", "speculative_model_dir", "--extra_llm_api_options"),
        ("1.2.0", "Eagle", "DraftTarget", "speculative_model_dir", "--config"),
        ("1.3.0rc6", "Eagle", "DraftTarget", "speculative_model_dir", "--config"),
        ("1.3.0rc7", "Eagle3", "Draft_Target", "speculative_model", "--config"),
        ("1.3.0rc13", "Eagle3", "Draft_Target", "speculative_model", "--config"),
        ("1.4.0rc1", "Eagle3", "Draft_Target", "speculative_model", "--config"),
    ],
)
def test_names_follow_the_version(version, eagle, draft, model_key, config):
    one = emission(head="nvidia/gpt-oss-120b-Eagle3-long-context", version=version)
    other = emission("llama-3.3-70b-fp4", head="nvidia/Llama-3.1-8B-Instruct-FP4", version=version)
    assert config_of(one)["speculative_config"]["decoding_type"] == eagle
    assert config_of(other)["speculative_config"]["decoding_type"] == draft
    assert config_of(one)["speculative_config"][model_key] == "nvidia/gpt-oss-120b-Eagle3-long-context"
    assert option(server_of(one).argv, config) == "/opt/eyas/trtllm.yaml"
    assert ("sampler_type" in config_of(one)) == (eagle == "Eagle")


def test_one_spark_with_eagle_3_is_the_playbooks_file():
    made = emission(head="nvidia/gpt-oss-120b-Eagle3-long-context", draft_tokens=5)
    assert config_of(made) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "enable_attention_dp": False,
        "enable_autotuner": False,
        "disable_overlap_scheduler": False,
        "cuda_graph_config": {"max_batch_size": 1},
        "speculative_config": {
            "decoding_type": "Eagle3",
            "max_draft_len": 5,
            "speculative_model": "nvidia/gpt-oss-120b-Eagle3-long-context",
        },
        "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": False},
        "moe_config": {"backend": "CUTLASS"},
    }
    server = server_of(made)
    assert server.argv[:4] == ("trtllm-serve", "openai/gpt-oss-120b", "--backend", "pytorch")
    assert option(server.argv, "--max_batch_size") == "1"
    assert {"TIKTOKEN_ENCODINGS_BASE", "TRITON_PTXAS_PATH"} <= {variable.name for variable in server.env}
    mounted = {mount.target: mount for mount in server.container.mounts}
    assert mounted["/opt/eyas/trtllm.yaml"].source == Home(".local/share/eyas/x/trtllm.yaml")
    assert "memlock=-1" in server.container.options
    assert made.readiness.path == "/health"
    assert [(one.repo, one.exclude) for one in made.downloads] == [
        ("openai/gpt-oss-120b", ("*/*",)),
        ("nvidia/gpt-oss-120b-Eagle3-long-context", ()),
    ]


def test_a_draft_model_runs_without_the_overlap_scheduler():
    config = config_of(emission("llama-3.3-70b-fp4", head="nvidia/Llama-3.1-8B-Instruct-FP4", draft_tokens=4))
    assert config["disable_overlap_scheduler"] is True
    assert config["speculative_config"]["max_draft_len"] == 4
    assert config["kv_cache_config"]["enable_block_reuse"] is False
    assert "moe_config" not in config  # a dense model


def test_eight_b200_are_blog_11():
    made = emission(
        box="8xb200",
        head="nvidia/gpt-oss-120b-Eagle3",
        context=131072,
        concurrency=10,
        expert_parallel=4,
        memory_fraction=0.8,
    )
    config, server = config_of(made), server_of(made)
    assert config["moe_config"] == {"backend": "TRTLLM"}
    assert config["cuda_graph_config"] == {"max_batch_size": 10}
    assert config["kv_cache_config"] == {"free_gpu_memory_fraction": 0.8, "enable_block_reuse": False}
    for name, value in {
        "--tp_size": "8",
        "--ep_size": "4",
        "--max_batch_size": "10",
        "--max_num_tokens": "8192",  # the blog has 131072 and no chunks
        "--max_seq_len": "131072",
        "--host": "127.0.0.1",
    }.items():
        assert option(server.argv, name) == value
    assert ("TRTLLM_ENABLE_PDL", "1") in [(one.name, one.value) for one in server.env]
    assert "--trust_remote_code" not in server.argv


@pytest.mark.parametrize(("context", "is_chunked"), [(1024, False), (8192, False), (8193, True), (131_072, True)])
def test_prompts_longer_than_an_iteration_go_in_chunks(context, is_chunked):
    """And an iteration has as many tokens as the memory map counts."""
    argv = server_of(emission(context=context)).argv
    assert int(option(argv, "--max_num_tokens")) == STEP_TOKENS["tensorrt-llm"] == 8192
    assert ("--enable_chunked_prefill" in argv) is is_chunked


@pytest.mark.parametrize(
    ("head", "captured"),
    [
        ("nvidia/gpt-oss-120b-Eagle3-v3", [23, 29, 35]),
        ("nvidia/gpt-oss-120b-Eagle3-throughput", [-1]),
        ("lmsys/EAGLE3-gpt-oss-120b-bf16", [1, 17, 33]),
        ("nvidia/gpt-oss-120b-Eagle3-long-context", None),  # the default
    ],
)
def test_layers_to_capture_are_said_where_they_are_not_the_default(head, captured):
    config = config_of(emission(box="8xgb200", head=head))
    assert config["speculative_config"].get("eagle3_layers_to_capture") == captured


def test_without_speculation_the_cache_is_shared_between_requests():
    config = config_of(emission(box="8xb200"))
    assert "speculative_config" not in config
    assert config["kv_cache_config"]["enable_block_reuse"] is True


def test_rtx_pro_6000_pads_its_graphs():
    config = config_of(emission(box="rtx-pro-6000", concurrency=8))
    assert config["cuda_graph_config"] == {"max_batch_size": 8, "enable_padding": True}
    assert config["moe_config"] == {"backend": "CUTLASS"}


def test_folders_at_hand_are_mounted_and_named():
    made = emission(head="nvidia/gpt-oss-120b-Eagle3-v3", model_path="/data/o's 120b", head_path="/data/h")
    server = server_of(made)
    assert made.downloads == ()
    assert server.argv[1] == "/models/target"
    assert config_of(made)["speculative_config"]["speculative_model"] == "/models/draft"
    assert ("/data/o's 120b", "/models/target") in [(one.source, one.target) for one in server.container.mounts]
    assert made.readiness.model == "target"


def test_a_native_process_reads_the_nodes_own_file():
    server = server_of(emission(image=None, binary="/opt/venv/bin/trtllm-serve"))
    assert server.container is None
    assert server.argv[0] == "/opt/venv/bin/trtllm-serve"
    assert option(server.argv, "--config") == Home(".local/share/eyas/x/trtllm.yaml")


def test_it_has_no_api_keys():
    with pytest.raises(ValueError, match="no API keys"):
        emission(api_key_env="KEY")


def test_two_nodes_natively_are_refused():
    with pytest.raises(ValueError, match="containers"):
        emission("qwen3-235b-a22b-fp4", "2xspark", image=None)


def test_the_plan_survives_its_file():
    made = emission("qwen3-235b-a22b-fp4", "2xspark", "nvidia/Qwen3-235B-A22B-Eagle3")
    assert msgspec.json.decode(msgspec.json.encode(made), type=type(made)) == made
