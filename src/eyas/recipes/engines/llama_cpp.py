"""llama.cpp: the `llama-server` of a choice, with GGUF files from the hub, from a folder, or written by eyas first.

Options were read in the help of llama-server 0.5.0 and in the source of August 2026. The context that it is given is
divided among its slots. With the head of the model's own GGUF repository it finds the file by itself.
"""

from __future__ import annotations

from typing import NamedTuple

from eyas.base.bundled import DEMO_NAME
from eyas.base.errors import UserError
from eyas.recipes.engines import common, flags
from eyas.recipes.estimate.kv import CHECKPOINTS, prompt_cache_mib, step_tokens
from eyas.recipes.plan import Box, Choice, Download, Emission, EnvVar, Launch, Readiness, Ref, Wait, Word
from eyas.recipes.records import METAL, Head, Model

__all__ = ["emit"]

ENGINE = "llama.cpp"
FOLDER, MODEL_FILE, HEAD_FILE = "gguf", "model.gguf", "head.gguf"  # what `eyas export gguf` writes
HEAD_FILES = "*eagle3-*"  # in the repository of a model
EXPORT_S = 3600.0


class _Files(NamedTuple):
    """Names of model and head for the server, what must be downloaded for them, and what written."""

    options: tuple[Word, ...]
    downloads: tuple[Download, ...] = ()
    export: tuple[Word, ...] | None = None  # words after `eyas export gguf`


def emit(choice: Choice, box: Box, model: Model, head: Head | None) -> Emission:
    """Emit. Raises UserError for a model without GGUF files, and ValueError for an option that the version lacks."""
    if choice.image is not None:
        raise UserError("llama.cpp is planned as a process of its own, not as a container; leave out --image")
    files = _files(choice, model, head)
    is_hub = "-hf" in files.options
    options: list[Word] = [*files.options, "--alias", model.repo]
    options += ["-c", str(choice.context * choice.concurrency), "-np", str(choice.concurrency)]
    options += _role_options(choice, model)
    if choice.kv_dtype == "fp8":
        options += ["-ctk", "q8_0", "-ctv", "q8_0"]  # the nearest that it has
    if box.hardware.unified:
        # Its copies of earlier conversations are in the same memory here, so they get a limit that is planned for.
        if box.hardware.compute_capability != METAL:  # Metal computes from the mapped file
            options += ["--load-mode", "none"]
        kept = prompt_cache_mib(choice, box)
        options += ["--cache-ram", str(kept), "--ctx-checkpoints", str(CHECKPOINTS if kept else 0)]
    if head is not None:
        options += ["--spec-type", "draft-eagle3", "--spec-draft-n-max", str(choice.draft_tokens), "-ngld", "999"]
    options += ["--metrics", "--host", choice.listen, "--port", str(choice.port)]
    if is_hub:
        options.append("--offline")  # all is downloaded before the start
    flags.check(ENGINE, choice.version, options)
    cache = (EnvVar(name="HF_HOME", value=choice.cache),)
    key = () if choice.api_key_env is None else (EnvVar(name="LLAMA_API_KEY", value=Ref(choice.api_key_env)),)
    server = Launch(
        name="server",
        argv=(choice.binary or "llama-server", *options),
        env=(*(cache if is_hub else ()), *key),
    )
    launches: tuple[Launch, ...] = (server,)
    if files.export is not None:
        argv = ("eyas", "export", "gguf", *files.export)
        env = cache if model.repo != DEMO_NAME else ()
        launches = (Launch(name="gguf", argv=argv, env=env, wait=Wait(timeout_s=EXPORT_S), is_once=True), server)
    return Emission(
        launches=launches,
        downloads=files.downloads,
        readiness=Readiness(path="/health", timeout_s=common.start_timeout_s(model), model=model.repo),
        features=common.tags(choice, head, launches),
    )


def _role_options(choice: Choice, model: Model) -> list[Word]:
    if choice.role == "embeddings":
        if model.pooling is None:
            raise UserError(f"how vectors of {model.name} are pooled is not known; choose another model")
        whole = str(choice.context)  # a text is read in one step, or refused
        options: list[Word] = ["-b", whole, "-ub", whole, "-ngl", "999", "-fa", "auto"]
        return [*options, "--embeddings", "--pooling", model.pooling]
    step = str(step_tokens(choice, 512))
    options = ["-b", step, "-ub", step, "-ngl", "999", "-fa", "on", "--jinja"]
    if "vision" in model.roles:
        options.append("--mmproj-auto" if choice.role == "vision" else "--no-mmproj")
    return options


def _files(choice: Choice, model: Model, head: Head | None) -> _Files:
    if choice.method == "draft-model":
        raise UserError(
            "llama.cpp is planned with EAGLE-3 heads, not with draft models; choose another --engine or --spec"
        )
    if choice.model_path is not None and choice.model_path.endswith(".gguf"):
        return _with_head(choice, model, head, _Files(("-m", choice.model_path)))
    if choice.model_path is not None and model.files:
        raise UserError(f"eyas writes no GGUF files of {model.name}; name it instead of a folder")
    if choice.model_path is not None or model.repo == DEMO_NAME:
        return _exported(choice, model, head)
    repo = model.repos.get(ENGINE)
    if repo is None:
        raise UserError(f"no GGUF files of {model.name} are known for llama.cpp; choose another --engine")
    num_bytes = model.repo_bytes.get(ENGINE, model.total_bytes)
    named = model.files.get(ENGINE)
    if named:
        wanted = named if choice.role == "vision" else named[:1]
        num_bytes += model.projector_bytes.get(ENGINE, 0) if choice.role == "vision" else 0
        only = Download(repo=repo, num_bytes=num_bytes, include=wanted, gated=model.gated)
        return _Files(("-hf", repo, "-hff", named[0]), (only,))
    if head is not None and choice.head_path is None and head.repos.get(ENGINE) == repo:
        whole = Download(repo=repo, num_bytes=num_bytes + head.total_bytes, gated=model.gated)
        return _Files(("-hf", repo), (whole,))
    without_head = Download(repo=repo, num_bytes=num_bytes, exclude=(HEAD_FILES,), gated=model.gated)
    return _with_head(choice, model, head, _Files(("-hf", repo), (without_head,)))


def _with_head(choice: Choice, model: Model, head: Head | None, files: _Files) -> _Files:
    """Return files for a model that is a GGUF file already, and a head that is one or is to be written as one."""
    if head is None:
        return files
    if choice.head_path is not None and choice.head_path.endswith(".gguf"):
        return _Files((*files.options, "-md", choice.head_path), files.downloads)
    folder = common.below(choice.directory, FOLDER)
    export = (model.repo, "--head-only", "--draft", choice.head_path or head.repo, "--out", folder)
    options = (*files.options, "-md", common.below(folder, HEAD_FILE))
    return _Files(options, (*files.downloads, *_head_download(choice, head)), export)


def _exported(choice: Choice, model: Model, head: Head | None) -> _Files:
    """Return files for a checkpoint's folder or the demo model, both written before the start."""
    folder = common.below(choice.directory, FOLDER)
    is_demo = choice.model_path is None
    draft: Word = "none"
    if head is not None:
        draft = choice.head_path or ("auto" if is_demo else head.repo)
    export = (choice.model_path or model.repo, "--draft", draft, "--out", folder)
    options: tuple[Word, ...] = ("-m", common.below(folder, MODEL_FILE))
    if head is None:
        return _Files(options, (), export)
    downloads = () if is_demo else _head_download(choice, head)
    return _Files((*options, "-md", common.below(folder, HEAD_FILE)), downloads, export)


def _head_download(choice: Choice, head: Head) -> tuple[Download, ...]:
    if choice.head_path is not None:
        return ()
    return (Download(repo=head.repo, num_bytes=head.total_bytes, gated=head.gated),)
