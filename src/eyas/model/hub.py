"""PATH or hub id -> local folder, through huggingface_hub and its cache.

Fetches the top level only: `original/` and `metal/` hold the same weights twice more. With HF_HUB_OFFLINE=1 nothing is
asked of the network. Nothing downloaded is executed.
"""

from __future__ import annotations

import re
from pathlib import Path

from eyas.base.errors import UserError

__all__ = ["resolve"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_UNWANTED = ["*/*"]  # patterns of huggingface_hub match across slashes


def resolve(model: str, *, headers_only: bool = False) -> Path:
    """The local folder of `model`: a path, or ORGANISATION/NAME[@REVISION] of the hub, downloaded if it must be.

    `headers_only` fetches the JSON files and leaves weights that are not cached alone.
    Raises UserError: neither a folder nor an id, not found, gated, offline and not cached, interrupted.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise UserError(f"{model} is a file; give the folder that holds config.json")
    repo, _, revision = model.partition("@")
    if not _HUB_ID.fullmatch(repo) or ".." in repo:
        raise UserError(f"{model} is neither a folder nor a hub id such as openai/gpt-oss-20b")
    return _download(repo, revision or None, [p for p in _WANTED if not headers_only or p != "*.safetensors"])


def _download(repo: str, revision: str | None, wanted: list[str]) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=_UNWANTED))
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        if isinstance(error, GatedRepoError):
            problem = "asks for consent first; accept its terms on the hub and set HF_TOKEN"
        elif isinstance(error, RepositoryNotFoundError):
            problem = "is not on the hub, or private; check the spelling, or set HF_TOKEN"
        elif isinstance(error, RevisionNotFoundError):
            problem = "has no such revision on the hub; name a branch, tag or commit"
        elif isinstance(error, LocalEntryNotFoundError):
            problem = "is not cached, and the hub cannot be reached; go online, or give a folder"
        else:
            problem = f"could not be downloaded ({str(error).splitlines()[0]}); try again, it resumes"
        raise UserError(f"{repo if revision is None else f'{repo}@{revision}'} {problem}") from error
