"""Resolves a path or hub id to a local folder, through huggingface_hub and its cache.

Fetches the top level only: `original/` and `metal/` hold the same weights twice more. With HF_HUB_OFFLINE=1 nothing is
asked of the network. Nothing downloaded is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eyas.base.bundled import DEMO, DEMO_NAME
from eyas.base.errors import UserError
from eyas.model.checkpoints.shards import StoredTensor

__all__ = ["resolve", "resolve_headers"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_TEXT_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
_WEIGHTS = "*.safetensors"
_UNWANTED = ["*/*"]  # patterns of huggingface_hub match across slashes


def resolve(model: str) -> Path:
    """The local folder of `model`: a path, "demo", or ORGANISATION/NAME[@REVISION] of the hub, downloaded if need be.

    Raises UserError: neither a folder nor an id, not found, gated, offline and not cached, interrupted.
    """
    found = _locate(model)
    return found if isinstance(found, Path) else _download(*found, [*_TEXT_FILES, _WEIGHTS])


def resolve_headers(model: str) -> tuple[Path, dict[str, StoredTensor] | None]:
    """Return the folder of `model`'s JSON files and, if its weights are only on the hub, their headers from there."""
    found = _locate(model)
    if isinstance(found, Path):
        return found, None
    folder = _download(*found, _TEXT_FILES)
    return folder, None if any(folder.glob(_WEIGHTS)) else _remote_headers(*found)


def _locate(model: str) -> Path | tuple[str, str | None]:
    if model == DEMO_NAME:
        return DEMO
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise UserError(f"{model} is a file; give the folder that holds config.json")
    repo, _, revision = model.partition("@")
    if not _HUB_ID.fullmatch(repo) or ".." in repo:
        raise UserError(f"{model} is neither a folder nor a hub id such as openai/gpt-oss-20b")
    return repo, revision or None


def _download(repo: str, revision: str | None, wanted: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    with _errors_for_people(repo, revision):
        return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=_UNWANTED))


def _remote_headers(repo: str, revision: str | None) -> dict[str, StoredTensor]:
    from huggingface_hub import HfApi

    with _errors_for_people(repo, revision):
        files = HfApi().get_safetensors_metadata(repo, revision=revision).files_metadata
    return {
        name: StoredTensor(
            file=file,
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            num_bytes=tensor.data_offsets[1] - tensor.data_offsets[0],
        )
        for file, header in files.items()
        for name, tensor in header.tensors.items()
    }


@contextmanager
def _errors_for_people(repo: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except Exception as error:  # its transports (requests, httpx, httpx2, by version) share no other base
        if isinstance(error, errors.GatedRepoError):
            problem = "asks for consent first; accept its terms on the hub and set HF_TOKEN"
        elif isinstance(error, errors.RepositoryNotFoundError):
            problem = "is not on the hub, or private; check the spelling, or set HF_TOKEN"
        elif isinstance(error, errors.RevisionNotFoundError):
            problem = "has no such revision on the hub; name a branch, tag or commit"
        elif isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
            problem = "is not cached, and the hub cannot be reached; go online, or give a folder"
        elif isinstance(error, errors.NotASafetensorsRepoError):
            problem = "has no safetensors weights at its top level; choose another model or revision"
        else:
            cause = " ".join(str(error).split()) or type(error).__name__
            problem = f"could not be read from the hub ({cause}); try again, a download resumes"
        raise UserError(f"{repo if revision is None else f'{repo}@{revision}'} {problem}") from error
