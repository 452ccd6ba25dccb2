"""SGLang's and vLLM's own argument parsers take every command that the emitters make, and mean the same by it.

The definitions come from the published packages, which pip downloads into `.engines/`. They are imported as they are,
in a process of their own; third-party modules that a machine without a GPU cannot have (CUDA kernels, NVML, Ray and
the like) are replaced by empty stand-ins, so nothing beyond the parsing of arguments is shown here.
"""

import json

import pytest
from tests.recipes.engines.choices import Case, grid, words
from tools.engine_flags import EngineParser, Offline

from eyas.recipes.engines import flags

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]  # the wheels of vLLM are large
SGLANG = ("0.5.3.post3", "0.5.6", "0.5.10", "0.5.15", "0.5.21", "0.5.23")
VLLM = ("0.14.1", "0.20.1", "0.33.0")
SPARK_GUIDE = (
    *("--model-path", "openai/gpt-oss-120b", "--speculative-algorithm", "EAGLE3"),
    *("--speculative-draft-model-path", "lmsys/EAGLE3-gpt-oss-120b-bf16", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4", "--quantization", "mxfp4", "--tp", "1"),
    *("--max-model-len", "8192", "--host", "0.0.0.0", "--port", "30000"),
)
SPECULATION = '{"method": "eagle3", "model": "m", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}'
H800_GUIDE = (
    *("serve", "openai/gpt-oss-120b", "--served-model-name", "gpt-oss", "--tensor-parallel-size", "8"),
    *("--max-num-seqs", "256", "--gpu-memory-utilization", "0.9", "--dtype", "auto", "--kv-cache-dtype", "fp8"),
    *("--max-model-len", "40960", "--async-scheduling", "--stream-interval", "1", "--speculative-config", SPECULATION),
)


@pytest.fixture(scope="module", params=SGLANG)
def sglang(request):
    yield from opened("sglang", request.param)


@pytest.fixture(scope="module", params=VLLM)
def vllm(request):
    yield from opened("vllm", request.param)


def opened(engine: str, version: str):
    try:
        parser = EngineParser(engine, version)
    except Offline as error:
        pytest.skip(f"{engine} {version} cannot be had here: {error}")
    with parser:
        yield parser


def test_sglang_takes_every_command(sglang):
    for one in grid("sglang", sglang.version):
        for rank, launch in enumerate(one.servers()):
            values = sglang.values(words(launch)[3:])
            expected = meant_in_sglang(one, rank, values)
            assert {name: values[name] for name in expected} == expected


def meant_in_sglang(one: Case, rank: int, names: dict) -> dict:
    """What the arguments should be, under the names that the version has for them."""
    choice = one.choice
    is_drafting = choice.method != "none"
    return {
        "model_path": one.model.repo if choice.model_path is None else "/models/target",
        "context_length": choice.context,
        "tp_size" if "tp_size" in names else "tensor_parallel_size": choice.tensor_parallel,
        "ep_size" if "ep_size" in names else "expert_parallel_size": choice.expert_parallel,
        "mem_fraction_static": choice.memory_fraction,
        "max_running_requests": choice.concurrency,
        "cuda_graph_max_bs" if "cuda_graph_max_bs" in names else "cuda_graph_max_bs_decode": choice.concurrency,
        "kv_cache_dtype": "fp8_e4m3" if choice.kv_dtype == "fp8" else "auto",
        "speculative_num_steps": choice.draft_tokens if is_drafting else None,
        "speculative_eagle_topk": 1 if is_drafting else None,
        "speculative_num_draft_tokens": choice.draft_tokens + 1 if is_drafting else None,
        "nnodes": len(choice.nodes),
        "node_rank": rank,
        "host": choice.listen,
        "port": choice.port,
        "enable_metrics": True,
        "api_key": None,  # put in inside the process
    }


def test_vllm_takes_every_command(vllm, tmp_path):
    parsers = vllm.ask(["?parsers"])
    for number, one in enumerate(grid("vllm", vllm.version)):
        values = vllm.values(with_config(one, tmp_path / f"{number}.yaml"))
        expected = meant_in_vllm(one)
        assert {name: values[name] for name in expected} == expected
        if one.choice.method != "none":
            assert values["speculative_config"]["num_speculative_tokens"] == one.choice.draft_tokens
            assert vllm.ask(["?speculative", json.dumps(values["speculative_config"])])["error"] is None
        assert values["tool_call_parser"] in {None, *parsers["tools"]}
        assert values["reasoning_parser"] in {"", *parsers["reasoning"]}


def with_config(one: Case, path) -> list[str]:
    """The server's words, the YAML file written where they say that it is."""
    emission = one.emit()
    command = words(emission.launches[-1])[1:]
    for file in emission.files:
        path.write_text(file.content, encoding="utf-8")
        command[command.index("--config") + 1] = str(path)
    return command


def meant_in_vllm(one: Case) -> dict:
    choice = one.choice
    expected = {
        "max_model_len": choice.context,
        "tensor_parallel_size": choice.tensor_parallel,
        "enable_expert_parallel": choice.expert_parallel > 1,
        "max_num_seqs": choice.concurrency,
        "kv_cache_dtype": choice.kv_dtype,
        "host": choice.listen,
        "port": choice.port,
        "distributed_executor_backend": "ray" if len(choice.nodes) > 1 else None,
        "async_scheduling": None,
    }
    if choice.memory_fraction is not None:
        expected["gpu_memory_utilization"] = choice.memory_fraction
    if choice.method == "none":
        expected["speculative_config"] = None
    return expected


def test_the_table_of_sglang_is_what_the_parser_says(sglang):
    assert flags.options("sglang", sglang.version) == frozenset(sglang.ask(["?options"])["options"])


def test_the_table_of_vllm_is_what_the_parser_says(vllm):
    assert flags.options("vllm", vllm.version) == frozenset(vllm.ask(["?options"])["options"])


def test_the_spark_guides_command_does_not_start(sglang):
    assert "unrecognized arguments: --max-model-len 8192" in sglang.error(SPARK_GUIDE)
    with pytest.raises(ValueError, match="has no option"):
        flags.check("sglang", sglang.version, SPARK_GUIDE)


def test_the_h800_guides_command_starts(vllm):
    assert vllm.error(H800_GUIDE) is None
    flags.check("vllm", vllm.version, H800_GUIDE)


def test_an_old_name_is_refused_where_it_is_gone(sglang):
    error = sglang.error(["--model-path", "m", "--cuda-graph-max-bs", "8"])
    is_known = "--cuda-graph-max-bs" in flags.options("sglang", sglang.version)
    assert (error is None) == is_known
    assert is_known or "ambiguous option: --cuda-graph-max-bs" in error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--attention-backend", "fa9"),
        ("--moe-runner-backend", "cuda"),
        ("--reasoning-parser", "harmony"),
        ("--tool-call-parser", "openai"),
        ("--kv-cache-dtype", "fp8"),
        ("--context-length", "forty"),
    ],
)
def test_sglang_notices_wrong_values(sglang, name, value):
    """The lists of values are the engine's own; a stand-in would take anything."""
    assert f"argument {name}: " in sglang.error(["--model-path", "m", name, value])


def test_vllms_configs_know_the_kernels_and_types(vllm):
    """vLLM's parser leaves these values to its config classes."""
    known = (
        ("AttentionConfig", "backend", "TRITON_ATTN"),
        ("KernelConfig", "moe_backend", "marlin"),
        ("CacheConfig", "cache_dtype", "fp8"),
    )
    for name, field, value in known:
        if (vllm.version, name) != ("0.14.1", "KernelConfig"):  # it has none, and no --moe-backend
            assert vllm.ask(["?config", name, json.dumps({field: value})])["error"] is None
            assert vllm.ask(["?config", name, json.dumps({field: f"{value}_"})])["error"] is not None


@pytest.mark.parametrize(("name", "value"), [("--max-num-seqs", "four"), ("--speculative-config", "{")])
def test_vllm_notices_wrong_values(vllm, name, value):
    assert f"argument {name}" in vllm.error(["serve", "m", name, value])


def test_wrong_speculative_configs_are_noticed(vllm):
    for settings in ({"tokens": 3}, {"method": "eagle4"}, {"num_speculative_tokens": "x"}):
        assert vllm.ask(["?speculative", json.dumps(settings)])["error"] is not None


def test_without_packages_and_network_the_reason_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Offline, match=r"pip download failed: .*vllm==0\.33\.0"):
        EngineParser("vllm", "0.33.0", tmp_path)
