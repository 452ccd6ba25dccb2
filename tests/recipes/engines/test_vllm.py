"""vLLM's commands: what decides on each box and in each version, the YAML recipe, Ray, and no secret in any word."""

import json

import pytest
import yaml
from tests.recipes.engines.choices import HOSTILE, case, env, grid, option, words

from eyas.recipes.advice.facts import command_features, facts_of
from eyas.recipes.advice.issues import matching
from eyas.recipes.engines import flags
from eyas.recipes.plan import Home, Mount, Ref, Wait

VERSIONS = flags.known_versions("vllm")


def server(box: str, head: str | None = "nvidia-v3", **changes):
    return case("vllm", box, head, **changes).servers()[-1]


def speculation(launch) -> dict:
    return json.loads(option(launch, "--speculative-config"))


def test_a_spark_with_one_draft_token():
    launch = server("spark", draft_tokens=1)
    assert words(launch) == [
        *("vllm", "serve", "openai/gpt-oss-120b", "--max-model-len", "65536"),
        *("--gpu-memory-utilization", "0.8", "--max-num-seqs", "4", "--speculative-config"),
        '{"method": "eagle3", "model": "nvidia/gpt-oss-120b-Eagle3-v3", "num_speculative_tokens": 1}',
        *("--attention-backend", "TRITON_ATTN", "--moe-backend", "marlin"),
        *("--tool-call-parser", "openai", "--enable-auto-tool-choice", "--host", "127.0.0.1", "--port", "8000"),
    ]
    assert env(launch) == {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": "/root/.cache/huggingface",
        "TIKTOKEN_ENCODINGS_BASE": "/opt/tiktoken",
    }
    assert case("vllm", "spark", "nvidia-v3").emit().features == ("vocab-files",)


@pytest.mark.parametrize("version", VERSIONS)
def test_kernels_are_options_where_there_are_such_and_variables_before(version):
    launch = server("rtx-pro-6000", version=version)
    has_attention, has_experts = version != "0.11.2", version not in ("0.11.2", "0.14.1")
    assert option(launch, "--attention-backend") == ("TRITON_ATTN" if has_attention else None)
    assert env(launch).get("VLLM_ATTENTION_BACKEND") == (None if has_attention else "TRITON_ATTN")
    assert option(launch, "--moe-backend") == ("marlin" if has_experts else None)
    assert env(launch).get("VLLM_MXFP4_USE_MARLIN") == (None if has_experts else "1")
    blackwell = env(server("b200", version=version))
    assert ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8" in blackwell) == (not has_experts)


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_that_costs_half_the_speed_or_stops_the_start(version):
    for one in grid("vllm", version):
        for launch in one.servers():
            found = set(words(launch))
            assert not found & {"--enforce-eager", "--async-scheduling", "--trust-remote-code", "0.0.0.0"}


def test_b200_gets_the_published_recipe_as_a_file():
    emission = case("vllm", "8xb200", "nvidia-v3", draft_tokens=7, purpose="batch", kv_dtype="fp8").emit()
    (file,) = emission.files
    config = yaml.safe_load(file.content)
    assert json.loads(config.pop("speculative-config")) == {
        "method": "eagle3",
        "model": "nvidia/gpt-oss-120b-Eagle3-v3",
        "num_speculative_tokens": 7,
        "draft_tensor_parallel_size": 1,
    }
    assert config == {
        "max-model-len": 65536,
        "gpu-memory-utilization": 0.8,
        "max-num-seqs": 4,
        "kv-cache-dtype": "fp8",
        "max-cudagraph-capture-size": 2048,
        "max-num-batched-tokens": 8192,
        "stream-interval": 20,
        "no-enable-prefix-caching": True,
    }
    launch = emission.launches[-1]
    assert option(launch, "--config") == "/opt/eyas/vllm.yaml"
    assert option(launch, "--tensor-parallel-size") == "8"
    source = Home(".local/share/eyas/test/vllm.yaml")
    assert Mount(source=source, target="/opt/eyas/vllm.yaml", read_only=True) in launch.container.mounts
    assert {"flag:--stream-interval=20", "flag:--no-enable-prefix-caching"} <= set(emission.features)


@pytest.mark.parametrize("purpose", ["chat", "claude-code", "discord"])
def test_people_get_early_tokens_and_their_earlier_turns_remembered(purpose):
    emission = case("vllm", "b200", "nvidia-v3", purpose=purpose).emit()
    config = yaml.safe_load(emission.files[0].content)
    assert not {"stream-interval", "no-enable-prefix-caching"} & set(config)


def test_a_native_process_reads_the_recipe_from_the_nodes_folder():
    launch = server("b200", image=None, directory="/srv/it's here", binary="/opt/vllm/bin/vllm")
    assert option(launch, "--config") == "/srv/it's here/vllm.yaml"
    assert launch.argv[0] == "/opt/vllm/bin/vllm"
    with pytest.raises(ValueError, match="cannot be named by the environment variable"):
        server("b200", image=None, directory=Ref("SOMEWHERE"))


def test_80_gb_leave_little_beside_the_weights():
    assert option(server("h100"), "--max-num-batched-tokens") == "1024"
    for box in ("h200", "8xh800", "spark", "rtx-pro-6000"):
        assert option(server(box), "--max-num-batched-tokens") is None


@pytest.mark.parametrize("box", ["h100", "spark", "b200", "h200"])
@pytest.mark.parametrize("concurrency", [1, 256, 1024, 2000, 4096, 10_000])
def test_each_request_has_a_token_of_an_iteration(box, concurrency):
    """Else vLLM does not start. Left to itself it takes 2048 tokens, more on the larger GPUs."""
    emission = case("vllm", box, "nvidia-v3", concurrency=concurrency).emit()
    flag = "flag:--max-num-batched-tokens="
    facts = command_features(emission) | {*emission.features}
    batched = next((int(tag.removeprefix(flag)) for tag in facts if tag.startswith(flag)), 2048)
    assert batched >= concurrency


def test_beyond_a_short_heads_positions_nothing_is_drafted():
    short = case("vllm", "h200", "lmsys-120b")
    names = {issue.name for issue in matching(facts_of(short.choice, short.box, short.emit()))}
    assert "VLLM-SHORT-HEAD" in names
    within = case("vllm", "h200", "lmsys-120b", context=4096)
    assert "short-head" not in within.emit().features


def test_h800_as_published_with_the_aimo_head():
    launch = server("8xh800", "aimo3", kv_dtype="fp8", context=40960, memory_fraction=0.9)
    assert option(launch, "--tensor-parallel-size") == "8"
    assert option(launch, "--kv-cache-dtype") == "fp8"
    assert speculation(launch) == {
        "method": "eagle3",
        "model": "wenliang1990/gpt-oss-120b-eagle3-aimo3",
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 1,
    }


def test_two_sparks_join_over_ray():
    emission = case("vllm", "2xspark", "nvidia-v3", api_key_env="EYAS_API_KEY").emit()
    head, worker, last = (launch for launch in emission.launches if not launch.is_once)
    assert (head.node, worker.node, last.node) == (0, 1, 0)
    assert words(head)[3:] == ["ray", "--head", "--port=6379", "--node-ip-address=192.168.200.12"]
    assert words(worker)[3:] == ["ray", "--address=192.168.200.12:6379", "--node-ip-address=192.168.200.13"]
    assert head.wait == worker.wait == Wait(log="Ray runtime started", timeout_s=600.0)
    assert last.inside == "ray-head"
    assert last.container is None
    assert option(last, "--distributed-executor-backend") == "ray"
    assert option(last, "--tensor-parallel-size") == "2"
    assert emission.files == ()
    for launch, address in ((head, "192.168.200.12"), (worker, "192.168.200.13"), (last, "192.168.200.12")):
        assert env(launch)["VLLM_HOST_IP"] == address
        assert env(launch)["NCCL_SOCKET_IFNAME"] == env(launch)["UCX_NET_DEVICES"] == "enp1s0f1np1,enP2p1s0f1np1"
        assert env(launch)["GLOO_SOCKET_IFNAME"] == env(launch)["TP_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert "VLLM_API_KEY" not in env(head) | env(worker)
    assert env(last)["VLLM_API_KEY"] == Ref("EYAS_API_KEY")


def test_two_nodes_without_containers():
    head, worker, last = case("vllm", "2xspark", None, image=None).servers()
    assert head.container is worker.container is last.inside is None


def test_the_key_is_in_no_word():
    launch = server("spark", api_key_env="EYAS_API_KEY")
    assert env(launch)["VLLM_API_KEY"] == Ref("EYAS_API_KEY")
    assert all(isinstance(word, str) and "EYAS_API_KEY" not in word for word in launch.argv)


def test_images_that_start_the_server_themselves_are_told_not_to():
    assert server("spark").container.options[-2:] == ("--entrypoint", "env")
    for mirror in ("registry.example:5000/vllm/vllm-openai:v0.33.0", "mirror.example/vllm-openai@sha256:0"):
        assert server("spark", image=mirror).container.options[-2:] == ("--entrypoint", "env")
    assert "--entrypoint" not in server("spark", image="nvcr.io/nvidia/vllm:26.05.post1-py3").container.options


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths_stay_one_word(path):
    native = server("h100", image=None, model_path=path, head_path=path)
    assert native.argv[2] == path
    assert speculation(native)["model"] == path
    assert option(native, "--served-model-name") == "openai/gpt-oss-120b"
    recipe = case("vllm", "b200", "nvidia-v3", image=None, head_path=path).emit().files[0]
    assert json.loads(yaml.safe_load(recipe.content)["speculative-config"])["model"] == path
    contained = server("h100", model_path=path, head_path=path)
    assert contained.argv[2] == "/models/target"
    assert speculation(contained)["model"] == "/models/draft"


def test_parsers_follow_the_model():
    assert option(server("spark"), "--reasoning-parser") is None  # vLLM sets it
    coder = server("spark", None, model="qwen3-coder-30b-a3b")
    assert option(coder, "--tool-call-parser") == "qwen3_coder"
    assert option(coder, "--moe-backend") is None
    thinking = server("2xspark", "qwen3-235b-eagle3", model="qwen3-235b-a22b-fp4")
    assert (option(thinking, "--reasoning-parser"), option(thinking, "--tool-call-parser")) == ("qwen3", "hermes")
    assert "--enable-auto-tool-choice" not in words(server("spark", tools=False))


def test_a_draft_model_shares_the_targets_gpus():
    launch = server("8xh200", "llama-3.1-8b-fp4", model="llama-3.3-70b-fp4")
    assert speculation(launch) == {
        "method": "draft_model",
        "model": "nvidia/Llama-3.1-8B-Instruct-FP4",
        "num_speculative_tokens": 3,
    }


def test_a_million_tokens_are_written_in_full():
    assert option(server("h200", context=1 << 20), "--max-model-len") == "1048576"


def test_experts_are_spread_on_request():
    assert "--enable-expert-parallel" in words(server("8xh200", expert_parallel=8))
    assert "--enable-expert-parallel" not in words(server("8xh200"))
