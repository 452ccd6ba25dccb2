"""Our own engine: the `eyas serve` of a choice. It runs on one GPU, or on the CPU.

The number of draft tokens is left to it: it measures and takes the fastest, zero included, up to what pays.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from eyas.base.bundled import DEMO_NAME, RANDOM_NAME
from eyas.base.errors import UserError
from eyas.recipes.engines import common, eyas_image, flags
from eyas.recipes.plan import Box, Choice, Container, Download, Emission, EnvVar, Launch, Mount, Readiness, Ref, Word
from eyas.recipes.records import CPU, Head, Model

__all__ = ["emit"]

STOP_S = 40  # until a container is killed: running answers may go on for 30 s (--drain)


def emit(choice: Choice, box: Box, model: Model, head: Head | None) -> Emission:
    """Emit a process, or a container of an image from our Dockerfile, whose entry point is `eyas`. Raises UserError."""
    is_bundled = choice.has_random_weights or (model.repo == DEMO_NAME and choice.model_path is None)
    paths = common.paths(choice, model, head, cache=eyas_image.CACHE)
    name = f"{RANDOM_NAME}:{model.name}" if choice.has_random_weights else model.repo
    options: list[Word] = [
        *("--draft", _draft(choice, head, paths.head)),
        *("--context", str(choice.context), "--concurrency", str(choice.concurrency)),
        *("--host", choice.listen, "--port", str(choice.port), "--served-name", name),
    ]
    if choice.kv_dtype == "fp8":
        options += ["--kv-dtype", "fp8"]
    if choice.simulate_acceptance is not None and head is not None:
        options += ["--simulate-acceptance", choice.simulate_acceptance]
    if choice.are_drafts_fixed:
        options += ["--draft-tokens", str(choice.draft_tokens)]
    if choice.memory_cap is not None:
        options.append("--whole-lm-head")  # no copy for which it would take memory that is free
    downloads: tuple[Download, ...] = ()
    env: list[EnvVar] = []
    if not is_bundled:
        downloads = common.downloads(choice, model, head)
        env += [EnvVar(name="HF_HOME", value=choice.cache if choice.image is None else eyas_image.CACHE)]
        options.append("--offline")  # all is downloaded before the start
    if choice.api_key_env is not None:
        env.append(EnvVar(name="EYAS_API_KEY", value=Ref(choice.api_key_env)))
    flags.check("eyas", choice.version, options)
    program: tuple[Word, ...] = (choice.binary or "eyas",) if choice.image is None else ()
    container = _container(choice, box, () if is_bundled else paths.mounts)
    server = Launch(
        name="server",
        argv=(*program, "serve", name if choice.has_random_weights else paths.model, *options),
        env=tuple(env),
        container=container,
    )
    return Emission(
        launches=(server,),
        files=eyas_image.files() if container is not None and container.is_built else (),
        downloads=downloads,
        readiness=Readiness(path="/ready", timeout_s=common.start_timeout_s(model), model=name),
        features=common.tags(choice, head, (server,)),
    )


def _container(choice: Choice, box: Box, mounts: Sequence[Mount]) -> Container | None:
    """Return a container on the node's own network, so that 127.0.0.1 is the node's; None: a native process."""
    if choice.image is None:
        return None
    gpus = () if box.hardware.compute_capability == CPU else ("--gpus", "all")
    return Container(
        name=f"{choice.name}-server",
        image=choice.image,
        options=(*gpus, "--network", "host", "--stop-timeout", str(STOP_S)),
        mounts=tuple(replace(mount, read_only=True) for mount in mounts),
        is_built=choice.image == eyas_image.TAG,
    )


def _draft(choice: Choice, head: Head | None, place: Word | None) -> Word:
    if choice.method == "none":
        return "none"
    if choice.method != "eagle3" or head is None:
        raise UserError("eyas drafts with EAGLE-3 heads, not with draft models; choose another --engine or --spec")
    if choice.has_random_weights:
        return head.kind
    if head.target == DEMO_NAME and choice.head_path is None:
        return "auto"
    assert place is not None
    return place
