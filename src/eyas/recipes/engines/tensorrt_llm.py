"""TensorRT-LLM: `trtllm-serve` with its YAML file, on the GPUs of one machine or over MPI on several.

Names of options and YAML keys follow the version: what each has is in `data/flags/tensorrt-llm/`, with where it was
read. `trtllm-serve` knows no API key, so the planner lets it listen on the node itself only.
"""

from __future__ import annotations

from typing import Any

import yaml
from msgspec.structs import replace

from eyas.recipes.engines import common, flags, mpi, vocabulary
from eyas.recipes.estimate.kv import STEP_TOKENS
from eyas.recipes.plan import Box, Choice, Emission, EnvVar, File, Launch, Mount, Readiness, Word
from eyas.recipes.records import Head, Model
from eyas.recipes.versions import satisfies

__all__ = ["CONFIG", "emit"]

CONFIG = "trtllm.yaml"
CONFIG_IN_CONTAINER = f"/opt/eyas/{CONFIG}"
ULIMITS = ("--ulimit", "memlock=-1", "--ulimit", "stack=67108864")  # as NVIDIA's playbooks have them

# Tokens of one iteration. Longer prompts are refused without chunks, and as many more tokens take memory for all at
# once, 28 GiB for 128k. NVIDIA's matrix of features has chunks with EAGLE-3 and with sliding windows as supported.
ITERATION = STEP_TOKENS["tensorrt-llm"]

# Since the YAML is checked against one class per `decoding_type`, the types are spelled as those classes spell them;
# before, a table in `DecodingBaseConfig.from_dict` named them. The first build known to have the classes:
CLASSES = ">=1.3.0rc7"


def emit(choice: Choice, box: Box, model: Model, head: Head | None) -> Emission:
    """Emit one server; on several nodes a container each, joined by MPI.

    Raises ValueError where an API key is asked for, and where `choice.version` lacks an option that the choice needs.
    """
    if choice.api_key_env is not None:
        raise ValueError("trtllm-serve knows no API keys")
    paths = common.paths(choice, model, head)
    settings = _settings(choice, box, model, head, paths.head)
    config = File(path=CONFIG, content=yaml.safe_dump(settings, sort_keys=False))
    command = _command(choice, model, paths.model)
    files: tuple[File, ...] = (config,)
    mount = Mount(source=common.below(choice.directory, CONFIG), target=CONFIG_IN_CONTAINER, read_only=True)
    env = (*common.common_env(choice, model), *common.fabric_env(box), *_env(box))
    if len(choice.nodes) > 1:
        mounts = (*paths.mounts, *vocabulary.mounts(model))
        launches, more = mpi.launches(choice, box, command, env, mounts, mount)
        files += more
    else:
        container = common.container(choice, box, model, "server", paths.mounts)
        if container is not None:
            options = (*container.options, *ULIMITS)
            container = replace(container, options=options, mounts=(*container.mounts, mount))
        launches = (Launch(name="server", argv=command, env=env, container=container),)
    launches = (*vocabulary.launches(choice, model), *launches)
    flags.check("tensorrt-llm", choice.version, command)
    return Emission(
        launches=launches,
        files=files,
        downloads=common.downloads(choice, model, head),
        readiness=Readiness(
            path="/health",
            timeout_s=common.start_timeout_s(model),
            model=_served_name(paths.model),
        ),
        features=common.tags(choice, head, launches),
    )


def _command(choice: Choice, model: Model, path: Word) -> tuple[Word, ...]:
    config = "--config" if satisfies(choice.version, ">=1.2.0") else "--extra_llm_api_options"
    where: Word = CONFIG_IN_CONTAINER if choice.image is not None else common.below(choice.directory, CONFIG)
    words: list[Word] = [choice.binary or "trtllm-serve", path, "--backend", "pytorch"]
    words += ["--host", choice.listen, "--port", str(choice.port)]
    words += ["--tp_size", str(choice.tensor_parallel)]
    if choice.expert_parallel > 1:
        words += ["--ep_size", str(choice.expert_parallel)]
    words += ["--max_batch_size", str(choice.concurrency)]
    words += ["--max_num_tokens", str(ITERATION), "--max_seq_len", str(choice.context)]
    if choice.context > ITERATION:
        words.append("--enable_chunked_prefill")
    if model.architecture.startswith("Qwen3") and satisfies(choice.version, ">=1.2.0"):
        words += ["--reasoning_parser", "qwen3"]
        if choice.tools:
            words += ["--tool_parser", "qwen3"]
    return (*words, config, where)


def _settings(choice: Choice, box: Box, model: Model, head: Head | None, head_path: Word | None) -> dict[str, Any]:
    """Write the YAML file, in the order in which NVIDIA's examples have it."""
    capability = box.hardware.compute_capability
    settings: dict[str, Any] = {"return_perf_metrics": True, "enable_iter_perf_stats": True}  # else nothing is counted
    if capability == "12.1":
        settings |= {"enable_attention_dp": False, "enable_autotuner": False}
    if choice.method != "none":
        settings["disable_overlap_scheduler"] = choice.method == "draft-model"
    settings["cuda_graph_config"] = {"max_batch_size": choice.concurrency}
    if capability.startswith("12.") and choice.concurrency > 1:
        settings["cuda_graph_config"]["enable_padding"] = True
    if head is not None and head_path is not None:
        settings["speculative_config"] = _speculation(choice, model, head, head_path)
        if not satisfies(choice.version, CLASSES):
            settings["sampler_type"] = "TorchSampler"  # since then the only one
    settings["kv_cache_config"] = _cache(choice)
    if model.num_experts and capability.startswith("12."):
        settings["moe_config"] = {"backend": "CUTLASS"}  # the others have no kernels for it
    elif model.harmony and capability.startswith("10."):
        settings["moe_config"] = {"backend": "TRTLLM"}
    return settings


def _speculation(choice: Choice, model: Model, head: Head, head_path: Word) -> dict[str, Any]:
    has_classes = satisfies(choice.version, CLASSES)
    if choice.method == "draft-model":
        kind = "Draft_Target" if has_classes else "DraftTarget"
    else:
        kind = "Eagle3" if has_classes else "Eagle"
    settings: dict[str, Any] = {
        "decoding_type": kind,
        "max_draft_len": choice.draft_tokens,
        "speculative_model" if has_classes else "speculative_model_dir": head_path,
    }
    if choice.method == "eagle3" and head.taps and set(head.taps) != default_taps(model.num_layers):
        settings["eagle3_layers_to_capture"] = list(head.taps)
    return settings


def default_taps(num_layers: int) -> set[int]:
    """Return the layers that TensorRT-LLM captures by default."""
    return {1, num_layers // 2 - 1, num_layers - 4}


def _cache(choice: Choice) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if choice.memory_fraction is not None:
        settings["free_gpu_memory_fraction"] = choice.memory_fraction  # of what the weights leave free
    if choice.kv_dtype == "fp8":
        settings["dtype"] = "fp8"
    return settings | {"enable_block_reuse": choice.method == "none"}


def _env(box: Box) -> tuple[EnvVar, ...]:
    if box.hardware.compute_capability.startswith("10."):
        return (EnvVar(name="TRTLLM_ENABLE_PDL", value="1"),)
    if box.hardware.compute_capability.startswith("12."):  # Triton's own ptxas does not know these GPUs
        cuda = "/usr/local/cuda"
        return (
            EnvVar(name="CPATH", value=f"{cuda}/include"),
            EnvVar(name="TRITON_PTXAS_PATH", value=f"{cuda}/bin/ptxas"),
        )
    return ()


def _served_name(path: Word) -> str:
    """Return the served name: the last name of a folder, the whole name of a repository."""
    name = str(path)
    return name.rstrip("/").rpartition("/")[2] if name.startswith("/") else name
