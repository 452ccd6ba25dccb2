"""SGLang: the command of a choice, on one GPU, several, or two machines.

Option names and automatic choices were read in the published packages 0.5.3.post3, 0.5.6, 0.5.10 and 0.5.23. What
SGLang chooses by itself is left to it, unless a version is known to choose badly.
"""

from __future__ import annotations

from eyas.recipes.engines import common, flags, vocabulary
from eyas.recipes.plan import Box, Choice, Emission, EnvVar, Launch, Node, Readiness, Ref, Word
from eyas.recipes.records import Head, Model
from eyas.recipes.versions import satisfies

__all__ = ["emit"]

RENDEZVOUS_PORT = 20000
KEY = "SGLANG_SERVER_KEY"
# SGLang takes its key as an argument only, which every user of the machine can read: it is added inside the process.
START_WITH_KEY = (
    f"import os, runpy, sys; sys.argv += ['--api-key', os.environ['{KEY}']]; "
    "runpy.run_module('sglang.launch_server', run_name='__main__', alter_sys=True)"
)
ALGORITHMS = {"eagle3": "EAGLE3", "draft-model": "STANDALONE"}


def emit(choice: Choice, box: Box, model: Model, head: Head | None) -> Emission:
    """Emit. Raises ValueError when `choice.version` lacks an option that the choice needs."""
    paths = common.paths(choice, model, head)
    options = (
        *_model_options(choice, box, model, paths.model),
        *_speculation_options(choice, paths.head),
        *_server_options(choice, model),
    )
    servers = tuple(_launch(choice, box, model, head, rank, options, paths) for rank in range(len(choice.nodes)))
    for server in servers:
        flags.check("sglang", choice.version, server.argv[3:])
    launches = (*vocabulary.launches(choice, model), *servers)
    return Emission(
        launches=launches,
        downloads=common.downloads(choice, model, head),
        readiness=Readiness(
            path="/ready" if _has_ready(choice) else "/health",
            timeout_s=common.start_timeout_s(model),
            model=model.repo,
        ),
        features=common.tags(choice, head, launches),
    )


def _model_options(choice: Choice, box: Box, model: Model, path: Word) -> list[Word]:
    options: list[Word] = ["--model-path", path]
    if choice.model_path is not None:
        options += ["--served-model-name", model.repo]
    if choice.tensor_parallel > 1:
        options += ["--tp-size", str(choice.tensor_parallel)]
    if choice.expert_parallel > 1:
        options += ["--ep-size", str(choice.expert_parallel)]
    options += ["--context-length", str(choice.context)]
    if choice.memory_fraction is not None:
        options += ["--mem-fraction-static", f"{choice.memory_fraction:g}"]
    options += ["--max-running-requests", str(choice.concurrency)]
    if choice.is_version_known:  # the option was renamed, so none serves all versions; SGLang has a default
        graphs = "--cuda-graph-max-bs"
        if f"{graphs}-decode" in flags.options("sglang", choice.version):
            graphs += "-decode"
        options += [graphs, str(choice.concurrency)]
    options += _quantization(choice, model)
    if choice.kv_dtype == "fp8":
        options += ["--kv-cache-dtype", "fp8_e4m3"]
    if model.harmony and box.hardware.compute_capability == "9.0":
        options += ["--attention-backend", "fa3"]
    runner = _forced_moe_runner(choice, box, model)
    if runner is not None:
        options += ["--moe-runner-backend", runner]
    return options


def _quantization(choice: Choice, model: Model) -> list[Word]:
    """Return quantization options. MXFP4 is read from config.json and must not be named: a head would get it too.

    ModelOpt's FP4 must be named where the hub is not asked, and then the head be excluded.
    """
    if model.weight_format != "nvfp4":
        return []
    options: list[Word] = ["--quantization", "modelopt_fp4"]
    if choice.method == "eagle3":
        options += ["--speculative-draft-model-quantization", "unquant"]
    return options


def _speculation_options(choice: Choice, head_path: Word | None) -> list[Word]:
    """Return options for a chain: one candidate per step; the bonus token counts as a draft token."""
    if choice.method == "none" or head_path is None:
        return []
    options: list[Word] = ["--speculative-algorithm", ALGORITHMS[choice.method]]
    options += ["--speculative-draft-model-path", head_path]
    options += ["--speculative-num-steps", str(choice.draft_tokens)]
    options += ["--speculative-eagle-topk", "1"]
    options += ["--speculative-num-draft-tokens", str(choice.draft_tokens + 1)]
    return options


def _server_options(choice: Choice, model: Model) -> list[Word]:
    options: list[Word] = []
    reasoning, tools = _parsers(model)
    if reasoning is not None:
        options += ["--reasoning-parser", reasoning]
    if tools is not None and choice.tools:
        options += ["--tool-call-parser", tools]
    options += ["--enable-metrics", "--host", choice.listen, "--port", str(choice.port)]
    return options


def _parsers(model: Model) -> tuple[str | None, str | None]:
    if model.harmony:
        return "gpt-oss", "gpt-oss"
    if model.architecture.startswith("Qwen3"):
        return (None, "qwen3_coder") if "coder" in model.name.lower() else ("qwen3", "qwen25")
    return None, None


def _forced_moe_runner(choice: Choice, box: Box, model: Model) -> str | None:
    """Return an option against 0.5.6 to 0.5.9, which take cc 12 for cc 10 and pick a kernel that only cc 10 has."""
    if not model.harmony or not box.hardware.compute_capability.startswith("12."):
        return None
    return "triton_kernel" if satisfies(choice.version, ">=0.5.6,<0.5.10") else None


def _launch(
    choice: Choice, box: Box, model: Model, head: Head | None, rank: int, options: tuple[Word, ...], paths: common.Paths
) -> Launch:
    name = "server" if len(choice.nodes) == 1 else f"server-{rank}"
    return Launch(
        name=name,
        node=rank,
        argv=(choice.binary or "python3", *_start(choice, rank), *options, *_rank_options(choice, rank)),
        env=(
            *([EnvVar(name=KEY, value=Ref(choice.api_key_env))] if choice.api_key_env and rank == 0 else []),
            *common.common_env(choice, model),
            *_health_env(choice),
            *_speculation_env(choice, head),
            *_network_env(choice, box, choice.nodes[rank]),
        ),
        container=common.container(choice, box, model, name, paths.mounts),
    )


def _start(choice: Choice, rank: int) -> tuple[str, str]:
    """Return the start of the command; only the first rank answers requests and needs the key."""
    return ("-c", START_WITH_KEY) if rank == 0 and choice.api_key_env else ("-m", "sglang.launch_server")


def _rank_options(choice: Choice, rank: int) -> list[Word]:
    """Return the options that differ between nodes."""
    options: list[Word] = []
    if rank == 0 and choice.api_key_env and satisfies(choice.version, "<0.5.23"):
        options += ["--log-level", "warning"]  # they log all arguments, the key too (SGL-KEY-LOG)
    if len(choice.nodes) > 1:
        options += ["--nnodes", str(len(choice.nodes)), "--node-rank", str(rank)]
        options += ["--dist-init-addr", f"{choice.nodes[0].address}:{RENDEZVOUS_PORT}"]
    return options


def _has_ready(choice: Choice) -> bool:
    return satisfies(choice.version, ">=0.5.20")


def _health_env(choice: Choice) -> list[EnvVar]:
    """Return variables for versions without /ready, whose /health generates a token, queued after all requests."""
    return [] if _has_ready(choice) else [EnvVar(name="SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", value="0")]


def _speculation_env(choice: Choice, head: Head | None) -> list[EnvVar]:
    env = []
    if common.is_head_short(choice, head):
        env.append(EnvVar(name="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", value="1"))
    if choice.method == "eagle3" and satisfies(choice.version, ">=0.5.6,<=0.5.12"):
        env.append(EnvVar(name="SGLANG_ENABLE_SPEC_V2", value="1"))
    return env


def _network_env(choice: Choice, box: Box, node: Node) -> list[EnvVar]:
    if len(choice.nodes) == 1 or not node.interfaces:
        return [*common.fabric_env(box)]
    return [
        *common.fabric_env(box),
        EnvVar(name="NCCL_SOCKET_IFNAME", value=",".join(node.interfaces)),
        EnvVar(name="GLOO_SOCKET_IFNAME", value=node.interfaces[0]),
    ]
