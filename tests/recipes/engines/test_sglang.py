"""SGLang's commands: what decides on each box and in each version, and that no secret and no path gets out of hand."""

import os
import subprocess
import sys

import pytest
from huggingface_hub.utils import filter_repo_objects
from tests.recipes.engines.choices import case, env, option, words

from eyas.recipes.advice.facts import facts_of
from eyas.recipes.advice.issues import matching
from eyas.recipes.engines import flags
from eyas.recipes.plan import Home, Mount, Node, Ref

VERSIONS = flags.known_versions("sglang")


def server(box: str, head: str | None = "lmsys-120b", **changes):
    return case("sglang", box, head, **changes).servers()[0]


def test_a_spark_with_the_published_head():
    """As the only published run on a Spark, with the context, memory and requests that fit."""
    launch = server("spark", context=65536, concurrency=4)
    assert words(launch) == [
        *("python3", "-m", "sglang.launch_server", "--model-path", "openai/gpt-oss-120b"),
        *("--context-length", "65536", "--mem-fraction-static", "0.8", "--max-running-requests", "4"),
        *("--cuda-graph-max-bs-decode", "4", "--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", "lmsys/EAGLE3-gpt-oss-120b-bf16"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
        *("--reasoning-parser", "gpt-oss", "--tool-call-parser", "gpt-oss"),
        *("--enable-metrics", "--host", "127.0.0.1", "--port", "8000"),
    ]
    assert launch.container.options == ("--gpus", "all", "--ipc", "host", "--shm-size", "32g", "--network", "host")
    assert Mount(source=Home(".cache/huggingface"), target="/root/.cache/huggingface") in launch.container.mounts
    assert env(launch) == {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": "/root/.cache/huggingface",
        "TIKTOKEN_ENCODINGS_BASE": "/opt/tiktoken",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
    }


@pytest.mark.parametrize("box", ["spark", "rtx-pro-6000", "h100", "b200"])
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_the_spark_guide_that_breaks(box, version):
    for launch in case("sglang", box, version=version).servers():
        assert not {"--max-model-len", "--quantization", "--trust-remote-code"} & set(words(launch))
        assert "0.0.0.0" not in words(launch)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_expert_kernel_of_cc_10_is_kept_off_cc_12(version):
    needed = version in ("0.5.6", "0.5.7", "0.5.9")
    for box in ("spark", "rtx-pro-6000"):
        launch = server(box, version=version)
        assert option(launch, "--moe-runner-backend") == ("triton_kernel" if needed else None)
    for box in ("h100", "b200"):
        assert option(server(box, version=version), "--moe-runner-backend") is None


def test_attention_is_said_on_hopper_only():
    assert option(server("h100"), "--attention-backend") == "fa3"
    assert option(server("h800"), "--attention-backend") == "fa3"
    assert option(server("spark"), "--attention-backend") is None
    assert option(server("b200"), "--attention-backend") is None


@pytest.mark.parametrize("version", VERSIONS)
def test_names_that_changed_between_versions(version):
    launch = server("8xh200", version=version, concurrency=100)
    old = option(launch, "--cuda-graph-max-bs")
    new = option(launch, "--cuda-graph-max-bs-decode")
    assert {old, new} == {"100", None}
    assert (new == "100") == (version in ("0.5.15", "0.5.20", "0.5.21", "0.5.23"))
    assert ("SGLANG_ENABLE_SPEC_V2" in env(launch)) == (version in ("0.5.6", "0.5.7", "0.5.9", "0.5.10", "0.5.12"))
    readiness = case("sglang", "spark", version=version).emit().readiness
    has_ready = version in ("0.5.20", "0.5.21", "0.5.23")
    assert readiness.path == ("/ready" if has_ready else "/health")
    assert env(launch).get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION") == (None if has_ready else "0")


def test_eight_gpus_as_in_the_nightly_tests():
    launch = server("8xb200", concurrency=100, memory_fraction=0.85)
    assert option(launch, "--tp-size") == "8"
    assert option(launch, "--mem-fraction-static") == "0.85"
    assert option(launch, "--cuda-graph-max-bs-decode") == "100"
    assert option(launch, "--speculative-num-steps") == "3"


@pytest.mark.parametrize("draft_tokens", [1, 2, 3, 5, 7])
def test_a_chain_counts_the_bonus_token(draft_tokens):
    launch = server("h200", draft_tokens=draft_tokens)
    assert option(launch, "--speculative-num-steps") == str(draft_tokens)
    assert option(launch, "--speculative-num-draft-tokens") == str(draft_tokens + 1)
    assert option(launch, "--speculative-eagle-topk") == "1"


def test_without_speculation_nothing_of_it_is_said():
    launch = server("spark", None)
    assert not any(word.startswith("--speculative") for word in words(launch))
    assert not any(name.startswith("SGLANG_") for name in env(launch))


def test_a_head_whose_positions_reach_needs_no_leave():
    allow = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
    assert allow not in env(server("spark", context=4096))
    assert allow in env(server("spark", context=4097))
    assert "short-head" in case("sglang", "spark", context=4097).emit().features
    assert allow not in env(server("spark", "nvidia-v3"))


def test_two_nodes_meet_on_the_first_ones_address():
    first, second = case("sglang", "2xspark", api_key_env="EYAS_API_KEY").servers()
    assert (first.node, second.node) == (0, 1)
    for rank, launch in enumerate((first, second)):
        assert option(launch, "--tp-size") == option(launch, "--nnodes") == "2"
        assert option(launch, "--node-rank") == str(rank)
        assert option(launch, "--dist-init-addr") == "192.168.200.12:20000"
        assert env(launch)["NCCL_SOCKET_IFNAME"] == "enp1s0f1np1,enP2p1s0f1np1"
        assert env(launch)["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
        assert "/dev/infiniband:/dev/infiniband" in launch.container.options
    assert first.container.name != second.container.name
    assert env(first)["SGLANG_SERVER_KEY"] == Ref("EYAS_API_KEY")
    assert "SGLANG_SERVER_KEY" not in env(second) and "-m" in second.argv


def test_eight_gb200_are_two_trays():
    """Of four GPUs each, joined by NVLink, whose channel the containers must be given. No Spark's ports are named."""
    nodes = (Node(name="a", address="10.0.0.1"), Node(name="b", ssh="b", address="10.0.0.2"))
    launches = case("sglang", "8xgb200", nodes=nodes).servers()
    assert [option(launch, "--node-rank") for launch in launches] == ["0", "1"]
    assert {option(launch, "--tp-size") for launch in launches} == {"8"}
    for launch in launches:
        assert env(launch)["NVIDIA_IMEX_CHANNELS"] == "0"
        assert "NCCL_SOCKET_IFNAME" not in env(launch)
    assert "NVIDIA_IMEX_CHANNELS" not in env(server("2xspark")) | env(server("4xgb200"))


LAUNCH_SERVER = """
import multiprocessing, pathlib, sys

def child(queue):
    queue.put("started")

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(), sys.argv[-2:], "s3cret" in pathlib.Path("/proc/self/cmdline").read_text())
"""


def test_the_key_is_in_no_argument_that_others_can_read(tmp_path):
    """Started for real, but for SGLang: a module of its name that starts a process of its own, as SGLang does."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "launch_server.py").write_text(LAUNCH_SERVER)
    launch = server("spark", api_key_env="EYAS_API_KEY")
    assert not any(isinstance(word, Ref) for word in launch.argv)
    environment = {"PYTHONPATH": str(tmp_path), "SGLANG_SERVER_KEY": "s3cret", "PATH": os.environ["PATH"]}
    words = [sys.executable, *launch.argv[1:]]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "started ['--api-key', 's3cret'] False\n"
    known = case("sglang", "spark", api_key_env="EYAS_API_KEY")
    found = {issue.name for issue in matching(facts_of(known.choice, known.box, known.emit()))}
    assert "SGL-KEY-LOG" not in found


@pytest.mark.parametrize(
    "path", ["/models/with space", "/models/it's", '/models/"x"', "/models/$HOME/`id`", "/m;rm -rf"]
)
def test_hostile_paths_stay_one_word(path):
    native = server("h100", image=None, model_path=path, head_path=path)
    assert option(native, "--model-path") == path
    assert option(native, "--speculative-draft-model-path") == path
    assert option(native, "--served-model-name") == "openai/gpt-oss-120b"
    made = case("sglang", "h100", model_path=path).emit()
    contained = made.launches[-1]
    assert option(contained, "--model-path") == "/models/target"
    assert Mount(source=path, target="/models/target", read_only=True) in contained.container.mounts
    assert [download.repo for download in made.downloads] == ["lmsys/EAGLE3-gpt-oss-120b-bf16"]


def test_a_native_process_uses_the_nodes_own_paths():
    launch = server("h100", image=None, binary="/opt/venv/bin/python3", cache="/data/hub")
    assert launch.container is None
    assert launch.argv[0] == "/opt/venv/bin/python3"
    assert env(launch)["HF_HOME"] == "/data/hub"
    assert env(launch)["TIKTOKEN_ENCODINGS_BASE"] == Home(".cache/eyas/tiktoken")


def test_vocabulary_comes_first_on_every_node():
    emission = case("sglang", "2xspark").emit()
    assert [(launch.name, launch.node, launch.is_once) for launch in emission.launches] == [
        ("vocabulary-0", 0, True),
        ("vocabulary-1", 1, True),
        ("server-0", 0, False),
        ("server-1", 1, False),
    ]
    assert "vocab-files" in emission.features
    other = case("sglang", "spark", None, model="qwen3-coder-30b-a3b").emit()
    assert [launch.name for launch in other.launches] == ["server"]


def test_parsers_follow_the_model():
    coder = server("spark", None, model="qwen3-coder-30b-a3b")
    assert option(coder, "--tool-call-parser") == "qwen3_coder"
    assert option(coder, "--reasoning-parser") is None
    llama = server("spark", None, model="llama-3.3-70b-fp4")
    assert option(llama, "--tool-call-parser") is None
    without = server("spark", tools=False)
    assert option(without, "--tool-call-parser") is None
    assert option(without, "--reasoning-parser") == "gpt-oss"


def test_fp4_of_modelopt_is_said_and_the_head_kept_out_of_it():
    launch = server("2xspark", "qwen3-235b-eagle3", model="qwen3-235b-a22b-fp4")
    assert option(launch, "--quantization") == "modelopt_fp4"
    assert option(launch, "--speculative-draft-model-quantization") == "unquant"
    assert option(launch, "--reasoning-parser") == "qwen3"
    with pytest.raises(ValueError, match=r"sglang 0\.5\.6 has no option --speculative-draft-model-quantization"):
        server("2xspark", "qwen3-235b-eagle3", model="qwen3-235b-a22b-fp4", version="0.5.6")


def test_fp8_cache_and_experts():
    launch = server("8xb200", kv_dtype="fp8", expert_parallel=4)
    assert option(launch, "--kv-cache-dtype") == "fp8_e4m3"
    assert option(launch, "--ep-size") == "4"


def test_downloads_leave_the_twins_of_the_weights():
    target, head = case("sglang", "spark").emit().downloads
    assert target.repo == "openai/gpt-oss-120b"
    files = ["config.json", "model-00000-of-00014.safetensors", "original/model.safetensors", "metal/model.bin"]
    assert list(filter_repo_objects(files, ignore_patterns=list(target.exclude))) == files[:2]
    assert target.num_bytes == 65_248_815_744
    assert head.repo == "lmsys/EAGLE3-gpt-oss-120b-bf16"
