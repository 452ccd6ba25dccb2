"""Ollama: its server, and the model pulled into its own store once the server answers. It has no EAGLE-3.

Environment variables were read in its source of August 2026. The default context grows with the memory, so it is set.
"""

from __future__ import annotations

from eyas.base.errors import UserError
from eyas.recipes.engines import common
from eyas.recipes.plan import Box, Choice, Emission, EnvVar, Launch, Readiness, Wait
from eyas.recipes.records import Head, Model

__all__ = ["emit"]

SLOWEST_PULL = 2e6  # bytes per second


def emit(choice: Choice, box: Box, model: Model, head: Head | None) -> Emission:
    """Emit. Raises UserError for speculation, for keys, and for a model or a container that Ollama lacks."""
    tag = model.repos.get("ollama")
    problems = {
        "it has no EAGLE-3, and its draft models are part of its own files; choose --spec none": head is not None,
        "its server knows no API keys; leave out --api-key": choice.api_key_env is not None,
        "it is planned as a process of its own, not as a container; leave out --image": choice.image is not None,
        f"its library has no {model.name}; choose another --engine": tag is None,
        "it pulls models from its own library; leave the folder to another --engine": choice.model_path is not None,
    }
    for problem, applies in problems.items():
        if applies:
            raise UserError(problem)
    assert tag is not None
    host = f"[{choice.listen}]" if ":" in choice.listen else choice.listen
    settings = {
        "OLLAMA_HOST": f"{host}:{choice.port}",
        "OLLAMA_CONTEXT_LENGTH": str(choice.context),
        "OLLAMA_NUM_PARALLEL": str(choice.concurrency),
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "OLLAMA_KEEP_ALIVE": "-1",  # never unloads
        "OLLAMA_FLASH_ATTENTION": "1",
    }
    if choice.kv_dtype == "fp8":
        settings["OLLAMA_KV_CACHE_TYPE"] = "q8_0"  # the nearest that it has
    binary = choice.binary or "ollama"
    env = tuple(EnvVar(name=name, value=value) for name, value in settings.items())
    num_bytes = model.repo_bytes.get("ollama", model.total_bytes)
    launches = (
        Launch(name="server", argv=(binary, "serve"), env=env, wait=Wait(port=choice.port)),
        Launch(
            name="pull",
            argv=(binary, "pull", tag),
            env=env[:1],
            wait=Wait(timeout_s=600 + num_bytes / SLOWEST_PULL),
            is_once=True,
        ),
    )
    return Emission(
        launches=launches,
        readiness=Readiness(path="/api/version", timeout_s=common.start_timeout_s(model), model=tag),
    )
