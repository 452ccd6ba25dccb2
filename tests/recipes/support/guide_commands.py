"""The commands of the guides as people type them, made into emissions: what eyas's data about them is compared with."""

from __future__ import annotations

import shlex

from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.plan import Choice, Container, Emission, EnvVar, File, Home, Launch, Mount, Node, Readiness, Ref

READY = Readiness(path="/health", timeout_s=1, model="m")
RELEASE = "nvcr.io/nvidia/tensorrt-llm/release"
ULIMITS = "--ulimit memlock=-1 --ulimit stack=67108864"
PORTS = "enp1s0f1np1,enP2p1s0f1np1"
TOKEN = {"HF_TOKEN": Ref(name="HF_TOKEN")}
CACHE = Mount(source=Home(path=".cache/huggingface/"), target="/root/.cache/huggingface")

VERSIONS = {
    "sglang": "0.5.4",
    "tensorrt-llm": "1.2.0rc6",
    "llama.cpp": "b10488",
    "ollama": "0.12.1",
    "vllm": "0.14.1",
}


def typed(command, *, docker="", image="", env=None, mounts=(), yaml=None):
    """One server, in a container where `docker` names options of `docker run`."""
    container = Container(name="c", image=image, options=tuple(shlex.split(docker)), mounts=mounts) if image else None
    variables = tuple(EnvVar(name=name, value=value) for name, value in (env or {}).items())
    launch = Launch(name="server", argv=tuple(shlex.split(command)), env=variables, container=container)
    files = (File(path="options.yml", content=yaml),) if yaml is not None else ()
    return Emission(launches=(launch,), files=files, readiness=READY)


def choice(engine, box, model="gpt-oss-120b", **changes):
    """A choice that could have led to the guide's command."""
    place = parse_box(box)
    nodes = tuple(Node(name=f"node-{rank}") for rank in range(place.nodes))
    fields = {
        "model": model,
        "engine": engine,
        "version": VERSIONS[engine],
        "image": None,
        "method": "none",
        "context": 8192,
        "concurrency": 1,
        "nodes": nodes,
        "port": 8000,
        "cache": Home(path=".cache/huggingface"),
        "directory": Home(path="d"),
        "name": "d",
    }
    return Choice(**(fields | changes)), place


SPARK_GUIDE = typed(
    "python3 -m sglang.launch_server --model-path openai/gpt-oss-120b --speculative-algorithm EAGLE3"
    " --speculative-draft-model-path lmsys/EAGLE3-gpt-oss-120b-bf16 --speculative-num-steps 3"
    " --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --quantization mxfp4 --tp 1 --max-model-len 8192"
    " --host 0.0.0.0 --port 30000",
    docker="--gpus all --shm-size 32g -p 30000:30000 --ipc=host",
    image="lmsysorg/sglang:spark",
    env=TOKEN,
    mounts=(CACHE, Mount(source="/models", target="/models", read_only=True)),
)
CORTI_SGLANG = typed("python -m sglang.launch_server --model-path openai/gpt-oss-120b --host 0.0.0.0 --port 30000")
CORTI_LLAMA = typed(
    "~/llama.cpp/build/bin/llama-server -m ~/.cache/llama.cpp/gpt-oss-120b/gpt-oss-120b.gguf -c 16384 -ngl 999"
    " --flash-attn on --no-mmap --kv-unified --jinja -ub 2048 --host 0.0.0.0 --port 8005"
)
EAGLE3 = typed(
    "trtllm-serve openai/gpt-oss-120b --backend pytorch --tp_size 1 --max_batch_size 1"
    " --extra_llm_api_options /tmp/extra-llm-api-config.yml",
    docker=f"--rm -it {ULIMITS} --gpus=all --ipc=host --network host",
    image=f"{RELEASE}:1.2.0rc6",
    env=TOKEN | {"TIKTOKEN_ENCODINGS_BASE": "/tmp/harmony-reqs"},
    mounts=(CACHE,),
    yaml="""\
enable_attention_dp: false
disable_overlap_scheduler: false
enable_autotuner: false
cuda_graph_config:
    max_batch_size: 1
speculative_config:
    decoding_type: Eagle
    max_draft_len: 5
    speculative_model_dir: /opt/gpt-oss-120b-Eagle3/

kv_cache_config:
    free_gpu_memory_fraction: 0.9
    enable_block_reuse: false
""",
)
DRAFT_TARGET = typed(
    "trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP4 --backend pytorch --tp_size 1 --max_batch_size 1"
    " --kv_cache_free_gpu_memory_fraction 0.9 --extra_llm_api_options ./extra-llm-api-config.yml",
    docker=f"--rm -it {ULIMITS} --gpus=all --ipc=host --network host",
    image=f"{RELEASE}:1.2.0rc6",
    env=TOKEN,
    mounts=(CACHE,),
    yaml="""\
print_iter_log: false
disable_overlap_scheduler: true
speculative_config:
  decoding_type: DraftTarget
  max_draft_len: 4
  speculative_model_dir: /opt/Llama-3.1-8B-Instruct-FP4/
kv_cache_config:
  enable_block_reuse: false
""",
)
BLOG_11 = typed(
    "trtllm-serve /config/models/gpt-oss-120b --host 0.0.0.0 --port 8000 --max_batch_size 10 --tp_size 8 --ep_size 4"
    " --trust_remote_code --extra_llm_api_options /config/models/eagle/eagle.yaml --max_num_tokens 131072"
    " --max_seq_len 131072",
    docker=f"--rm --ipc=host -it {ULIMITS} --gpus all -p 8000:8000",
    image=f"{RELEASE}:1.1.0rc0",
    env={"TRTLLM_ENABLE_PDL": "1"},
    mounts=(Mount(source="/path/to/models", target="/config/models"),),
    yaml="""\
trust_remote_code: true
kv_cache_config:
  enable_block_reuse: false
  free_gpu_memory_fraction: 0.8
speculative_config:
  decoding_type: Eagle
  max_draft_len: 3
  speculative_model_dir: /config/models/eagle/
cuda_graph_config:
  max_batch_size: 10
use_torch_sampler: true
moe_config:
  backend: TRTLLM
""",
)
AIMO3 = typed(
    "python -m vllm.entrypoints.openai.api_server --model openai/gpt-oss-120b --served-model-name gpt-oss"
    " --tensor-parallel-size 8 --max-num-seqs 256 --gpu-memory-utilization 0.9 --host 0.0.0.0 --port 8000 --dtype auto"
    " --kv-cache-dtype fp8 --max-model-len 40960 --async-scheduling --stream-interval 1 --speculative-config "
    """'{"method":"eagle3","model":"gpt-oss-120b-eagle3-aimo3","num_speculative_tokens":3,"""
    """"draft_tensor_parallel_size":1}'"""
)


def two_sparks():
    """The container of the first Spark, and mpirun inside it."""
    fixed = {
        "UCX_NET_DEVICES": PORTS,
        "NCCL_SOCKET_IFNAME": PORTS,
        "OMPI_MCA_btl_tcp_if_include": PORTS,
        "OMPI_MCA_orte_default_hostfile": "/etc/openmpi-hostfile",
        "OMPI_MCA_rmaps_ppr_n_pernode": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "CPATH": "/usr/local/cuda/include",
        "TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas",
    }
    container = typed(
        "bash -c entrypoint",
        docker=f"-d --rm --name trtllm-multinode --gpus device=all --network host {ULIMITS}"
        " --device /dev/infiniband:/dev/infiniband",
        image=f"{RELEASE}:1.2.0rc6",
        env=fixed,
        mounts=(CACHE, Mount(source=Home(path=".ssh"), target="/tmp/.ssh", read_only=True)),
        yaml="""\
enable_attention_dp: false
disable_overlap_scheduler: false
enable_autotuner: false
enable_chunked_prefill: false
cuda_graph_config:
    max_batch_size: 1
speculative_config:
    decoding_type: Eagle
    max_draft_len: 3
    speculative_model_dir: /opt/Qwen3-235B-A22B-Eagle3/
kv_cache_config:
    free_gpu_memory_fraction: 0.9
    enable_block_reuse: false
""",
    )
    command = (
        "mpirun -x CPATH=/usr/local/cuda/include -x TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas -x HF_TOKEN"
        " trtllm-llmapi-launch trtllm-serve $MODEL --backend pytorch --tp_size 2 --max_num_tokens 1024"
        " --extra_llm_api_options /tmp/extra-llm-api-config.yml --port 8355 --host 0.0.0.0"
    )
    inside = typed(command, env=TOKEN | {"MODEL": "nvidia/Qwen3-235B-A22B-FP4"}).launches[0]
    server = Launch(name="mpirun", argv=inside.argv, env=inside.env, inside="server")
    return Emission(launches=(*container.launches, server), files=container.files, readiness=READY)


# Name of the guide: its command, and the choice and box that it is for.
COMMANDS = {
    "spark-guide-sglang": (SPARK_GUIDE, *choice("sglang", "spark")),
    "corti-sglang": (CORTI_SGLANG, *choice("sglang", "spark")),
    "corti-llama-cpp": (CORTI_LLAMA, *choice("llama.cpp", "spark")),
    "corti-ollama": (typed("ollama gpt-oss:120b"), *choice("ollama", "spark")),  # "ollama run gpt-oss:120b"
    "playbook-eagle3": (EAGLE3, *choice("tensorrt-llm", "spark")),
    "playbook-draft-target": (DRAFT_TARGET, *choice("tensorrt-llm", "spark", "llama-3.3-70b-fp4")),
    "playbook-two-sparks": (two_sparks(), *choice("tensorrt-llm", "2xspark", "qwen3-235b-a22b-fp4")),
    "blog-11": (BLOG_11, *choice("tensorrt-llm", "8xb200")),
    "aimo3-vllm": (AIMO3, *choice("vllm", "8xh800")),
}
