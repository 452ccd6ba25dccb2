"""vLLM: the command of a choice, on the GPUs of one machine or over Ray on two.

Option names, environment variables and automatic choices were read in the published packages 0.11.2, 0.14.1, 0.19.0,
0.25.1 and 0.33.0. Scheduling is left alone: it is asynchronous by itself wherever that works, and asking for it where
it does not is an error. B200 and GB200 get vLLM's published recipe as a YAML file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec.structs import replace

from eyas.recipes.engines import common, flags, ray, vocabulary
from eyas.recipes.plan import Box, Choice, Container, Emission, EnvVar, File, Launch, Mount, Readiness, Ref, Word
from eyas.recipes.records import Head, Model

__all__ = ["CONFIG", "emit"]

CONFIG = "vllm.yaml"
CONFIG_IN_CONTAINER = f"/opt/eyas/{CONFIG}"
OWN_IMAGES = "vllm-openai"  # of this name, in any registry: they start the server with all arguments
SAFE_SEQUENCES = 2048  # at once, with the least number of tokens per iteration that vLLM takes by itself
METHODS = {"eagle3": "eagle3", "draft-model": "draft_model"}


def emit(choice: Choice, box: Box, model: Model, head: Head | None) -> Emission:
    """Emit. Raises ValueError when `choice.version` lacks an option that the choice needs."""
    paths = common.paths(choice, model, head)
    kernels, kernel_env = _kernels(choice, box, model)
    settings = _settings(choice, box, model, paths.head) | kernels
    files, mounts = _config_file(choice, box, settings)
    options = (*_placement(choice, settings, bool(files)), *_server_options(choice, model))
    flags.check("vllm", choice.version, (*options, *(f"--{key}" for key in settings)))

    env = (*common.common_env(choice, model), *common.fabric_env(box), *kernel_env)
    key_env = _key_env(choice)
    command: tuple[Word, ...] = (choice.binary or "vllm", "serve", paths.model, *options)

    def container(name: str, *more: Mount) -> Container | None:
        return _with_shell(common.container(choice, box, model, name, (*paths.mounts, *more)))

    launches: tuple[Launch, ...]
    if len(choice.nodes) == 1:
        around = container("server", *mounts)
        launches = (Launch(name="server", argv=command, env=(*env, *key_env), container=around),)
    else:
        launches = ray.launches(choice, command, env, key_env, container)
    launches = (*vocabulary.launches(choice, model), *launches)
    return Emission(
        launches=launches,
        files=files,
        downloads=common.downloads(choice, model, head),
        readiness=Readiness(path="/health", timeout_s=common.start_timeout_s(model), model=model.repo),
        features=common.tags(choice, head, launches, _options_in_file(settings) if files else ()),
    )


def _settings(choice: Choice, box: Box, model: Model, head_path: Word | None) -> dict[str, Any]:
    """Return options with values, in the order in which the recipes have them."""
    capability = box.hardware.compute_capability
    settings: dict[str, Any] = {"max-model-len": choice.context}
    if choice.memory_fraction is not None:
        settings["gpu-memory-utilization"] = choice.memory_fraction
    settings["max-num-seqs"] = choice.concurrency
    if choice.kv_dtype == "fp8":
        settings["kv-cache-dtype"] = "fp8"
    if capability.startswith("10."):
        settings["max-cudagraph-capture-size"] = 2048
        settings["max-num-batched-tokens"] = max(8192, choice.concurrency)  # one each, or it does not start
        if choice.purpose == "batch":  # people want the second token early and their earlier turns remembered
            settings["stream-interval"] = 20
            settings["no-enable-prefix-caching"] = True
    elif model.harmony and choice.tensor_parallel == 1 and 64e9 < box.hardware.memory_bytes < 90e9:
        # The recipe for 80 GB: the weights leave little.
        settings["max-num-batched-tokens"] = max(1024, choice.concurrency)
    elif choice.concurrency > SAFE_SEQUENCES:
        settings["max-num-batched-tokens"] = choice.concurrency
    if choice.method != "none" and head_path is not None:
        settings["speculative-config"] = json.dumps(_speculation(choice, head_path))
    return settings


def _speculation(choice: Choice, head_path: Word) -> dict[str, Any]:
    speculation: dict[str, Any] = {
        "method": METHODS[choice.method],
        "model": head_path,
        "num_speculative_tokens": choice.draft_tokens,
    }
    if choice.method == "eagle3" and choice.tensor_parallel > 1:
        speculation["draft_tensor_parallel_size"] = 1  # a head is too small to be worth the messages
    return speculation


def _kernels(choice: Choice, box: Box, model: Model) -> tuple[dict[str, Any], tuple[EnvVar, ...]]:
    """Choose attention and expert kernels for gpt-oss: options where the version has them, else variables."""
    if not model.harmony:
        return {}, ()
    known = flags.options("vllm", choice.version)
    settings: dict[str, Any] = {}
    env: list[EnvVar] = []
    capability = box.hardware.compute_capability
    if capability.startswith("12."):
        # of the attention kernels with sinks the one that runs everywhere; experts in 4 bits with activations in 16
        if "--attention-backend" in known:
            settings["attention-backend"] = "TRITON_ATTN"
        else:
            env.append(EnvVar(name="VLLM_ATTENTION_BACKEND", value="TRITON_ATTN"))
        if "--moe-backend" in known:
            settings["moe-backend"] = "marlin"
        else:
            env.append(EnvVar(name="VLLM_MXFP4_USE_MARLIN", value="1"))
    elif capability.startswith("10.") and "--moe-backend" not in known:
        env.append(EnvVar(name="VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", value="1"))
    return settings, tuple(env)


def _config_file(choice: Choice, box: Box, settings: dict[str, Any]) -> tuple[tuple[File, ...], tuple[Mount, ...]]:
    if not box.hardware.compute_capability.startswith("10.") or len(choice.nodes) > 1:
        return (), ()
    mount = Mount(source=common.below(choice.directory, CONFIG), target=CONFIG_IN_CONTAINER, read_only=True)
    return (File(path=CONFIG, content=yaml.safe_dump(settings, sort_keys=False)),), (mount,)


def _placement(choice: Choice, settings: dict[str, Any], is_in_file: bool) -> list[Word]:
    options: list[Word] = []
    if is_in_file:
        where: Word = CONFIG_IN_CONTAINER if choice.image is not None else common.below(choice.directory, CONFIG)
        options += ["--config", where]
    else:
        for key, value in settings.items():
            options += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    if choice.tensor_parallel > 1:
        options += ["--tensor-parallel-size", str(choice.tensor_parallel)]
    if choice.expert_parallel > 1:
        options += ["--enable-expert-parallel"]
    if len(choice.nodes) > 1:
        options += ["--distributed-executor-backend", "ray"]
    return options


def _server_options(choice: Choice, model: Model) -> list[Word]:
    options: list[Word] = []
    if choice.model_path is not None:
        options += ["--served-model-name", model.repo]
    reasoning, tools = _parsers(model)
    if reasoning is not None:
        options += ["--reasoning-parser", reasoning]
    if tools is not None and choice.tools:
        options += ["--tool-call-parser", tools, "--enable-auto-tool-choice"]
    return [*options, "--host", choice.listen, "--port", str(choice.port)]


def _parsers(model: Model) -> tuple[str | None, str | None]:
    """Return parsers for reasoning and tools. For gpt-oss vLLM sets the former itself."""
    if model.harmony:
        return None, "openai"
    if model.architecture.startswith("Qwen3"):
        return (None, "qwen3_coder") if "coder" in model.name.lower() else ("qwen3", "hermes")
    return None, None


def _key_env(choice: Choice) -> tuple[EnvVar, ...]:
    if choice.api_key_env is None:
        return ()
    return (EnvVar(name="VLLM_API_KEY", value=Ref(choice.api_key_env)),)


def _with_shell(container: Container | None) -> Container | None:
    """Return the command for an image: vLLM's own put `vllm serve` before their arguments; `env` puts nothing there."""
    if container is None or OWN_IMAGES not in container.image.rpartition("/")[2]:
        return container
    return replace(container, options=(*container.options, "--entrypoint", "env"))


def _options_in_file(settings: dict[str, Any]) -> Iterator[str]:
    """Return the tags that the same options would have on the command line."""
    for key, value in settings.items():
        yield f"flag:--{key}"
        if value is not True:
            yield f"flag:--{key}={value}"
