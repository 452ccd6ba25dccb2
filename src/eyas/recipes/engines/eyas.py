"""Our own engine: the `eyas serve` of a choice. It runs on one GPU, or on the CPU.

The number of draft tokens is left to it: it measures and takes the fastest, zero included, up to what pays.
"""

from __future__ import annotations

from eyas.base.bundled import DEMO_NAME
from eyas.base.errors import UserError
from eyas.recipes.engines import common, flags
from eyas.recipes.plan import Box, Choice, Download, Emission, EnvVar, Launch, Readiness, Ref, Word
from eyas.recipes.records import Head, Model

__all__ = ["emit"]


def emit(choice: Choice, box: Box, model: Model, head: Head | None) -> Emission:
    """Raises UserError for a container: no image is published."""
    if choice.image is not None:
        raise UserError("no image of eyas is published; leave out --image")
    is_demo = model.repo == DEMO_NAME and choice.model_path is None
    options: list[Word] = [
        *("--draft", _draft(choice, head)),
        *("--context", str(choice.context), "--concurrency", str(choice.concurrency)),
        *("--host", choice.listen, "--port", str(choice.port), "--served-name", model.repo),
    ]
    if choice.are_drafts_fixed:
        options += ["--draft-tokens", str(choice.draft_tokens)]
    downloads: tuple[Download, ...] = ()
    env: list[EnvVar] = []
    if not is_demo:
        downloads = common.downloads(choice, model, head)
        env += [EnvVar(name="HF_HOME", value=choice.cache)]
        options.append("--offline")  # all is downloaded before the start
    if choice.api_key_env is not None:
        env.append(EnvVar(name="EYAS_API_KEYS", value=Ref(choice.api_key_env)))
    flags.check("eyas", choice.version, options)
    server = Launch(
        name="server",
        argv=(choice.binary or "eyas", "serve", choice.model_path or model.repo, *options),
        env=tuple(env),
    )
    return Emission(
        launches=(server,),
        downloads=downloads,
        readiness=Readiness(path="/ready", timeout_s=common.start_timeout_s(model), model=model.repo),
        features=common.tags(choice, head, (server,)),
    )


def _draft(choice: Choice, head: Head | None) -> Word:
    if choice.method == "none":
        return "none"
    if choice.method != "eagle3" or head is None:
        raise UserError("eyas drafts with EAGLE-3 heads, not with draft models; choose another --engine or --spec")
    if choice.head_path is not None:
        return choice.head_path
    return "auto" if head.target == DEMO_NAME else head.repo
