"""The Hugging Face cache of this machine by repository: what it takes, when it was used, and by whom.

The layout is that of huggingface_hub: `hub/models--ORG--NAME/{blobs,refs,snapshots}`. Sizes are what the disk gives up:
blocks of distinct files, abandoned parts of downloads included.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from eyas.base.errors import UserError, nearest
from eyas.fleet.running.state import Row

__all__ = ["Entry", "cache_folder", "entries", "find", "hub_folder", "remove"]

PREFIX = "models--"
BLOCK = 512  # bytes; stat counts blocks of this size on every file system


class Entry(Struct, frozen=True, kw_only=True):
    """A repository in the cache. Times are seconds since 1970."""

    repo: str
    folder: Path
    disk_bytes: int
    partial_bytes: int  # of it, parts of files that never came whole
    revisions: tuple[str, ...]  # `main` and other names, else commits
    last_used: float
    used_by: tuple[str, ...] = ()  # deployments that run, and processes that have a file of it open
    known_to: tuple[str, ...] = ()  # deployments that do not run now


def hub_folder(environ: Mapping[str, str]) -> Path:
    """Return where huggingface_hub keeps repositories: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"]).expanduser()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environ.get("HF_HOME") or f"{cache}/huggingface").expanduser() / "hub"


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """The HF_HOME whose `hub` is `hub_folder(environ)`; None: the default. Raises UserError where there is none."""
    hub = hub_folder(environ)
    if hub == hub_folder({}):
        return None
    if hub.name != "hub":
        raise UserError(
            f"HF_HUB_CACHE is {hub}, and engines find a cache only in a folder called hub; "
            "rename it, or name another cache: --cache DIR (its models go to DIR/hub)"
        )
    return str(hub.parent.absolute())


def entries(hub: Path, rows: Iterable[Row] = ()) -> tuple[Entry, ...]:
    """List every model repository in `hub`, the largest first. `rows` are the deployments of this machine."""
    here = [row for row in rows if any(node.ssh is None for node in row.plan.choice.nodes)]
    open_by = _open_by(hub)
    found = [_entry(folder, here, open_by) for folder in sorted(hub.glob(f"{PREFIX}*")) if folder.is_dir()]
    return tuple(sorted(found, key=lambda entry: -entry.disk_bytes))


def find(found: Iterable[Entry], repo: str) -> Entry:
    """Find the entry of `repo`, or of the only repository of that name in any organisation. Raises UserError."""
    known = {entry.repo: entry for entry in found}
    alike = [entry for name, entry in known.items() if repo.lower() in (name.lower(), name.lower().partition("/")[2])]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise UserError(f"{repo} is the name of {' and '.join(entry.repo for entry in alike)}; give one of them")
    raise UserError(f"{repo} is not in the cache{nearest(repo, known)}; see: eyas models list")


def remove(entry: Entry) -> int:
    """Delete a repository and return the bytes that the disk got back. Raises UserError: in use, or not ours."""
    if entry.used_by:
        raise UserError(f"{entry.repo} is in use by {', '.join(entry.used_by)}; stop that first: eyas down NAME")
    if entry.folder.is_symlink():
        raise UserError(f"{entry.folder} is a link to {entry.folder.resolve()}; delete both by hand")
    try:
        shutil.rmtree(entry.folder)
    except PermissionError as error:
        step = "often root's after docker: sudo chown -R $USER " + str(entry.folder)
        raise UserError(f"{error.filename} cannot be deleted; {step}") from None
    except OSError as error:
        raise UserError(f"{error.filename} cannot be deleted: {error.strerror}; look at that disk") from None
    shutil.rmtree(entry.folder.parent / ".locks" / entry.folder.name, ignore_errors=True)
    return entry.disk_bytes


def _entry(folder: Path, rows: Iterable[Row], open_by: Mapping[str, tuple[str, ...]]) -> Entry:
    repo = folder.name.removeprefix(PREFIX).replace("--", "/", 1)
    seen: set[tuple[int, int]] = set()
    disk, partial, last_used = 0, 0, folder.stat().st_mtime
    for path in _files(folder):
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        disk += status.st_blocks * BLOCK
        partial += status.st_blocks * BLOCK if path.name.endswith(".incomplete") else 0
        last_used = max(last_used, status.st_atime, status.st_mtime)
    users = [
        row for row in rows if any(download.repo.lower() == repo.lower() for download in row.plan.emission.downloads)
    ]
    return Entry(
        repo=repo,
        folder=folder,
        disk_bytes=disk,
        partial_bytes=partial,
        revisions=_revisions(folder),
        last_used=last_used,
        used_by=(*(row.name for row in users if row.is_active), *open_by.get(folder.name, ())),
        known_to=tuple(row.name for row in users if not row.is_active),
    )


def _files(folder: Path) -> Iterator[Path]:
    """Yield files that are no links: the blobs. (A file system without links has them in the snapshots.)"""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


def _revisions(folder: Path) -> tuple[str, ...]:
    """List the revisions: a branch or tag where one points to it, else the beginning of its commit."""
    refs = folder / "refs"
    files = [path for path in refs.rglob("*") if path.is_file()]
    named = {path.read_text(errors="replace").strip(): str(path.relative_to(refs)) for path in files}
    commits = sorted(path.name for path in (folder / "snapshots").glob("*"))
    return tuple(named.get(commit, commit[:12]) for commit in commits)


def _open_by(hub: Path) -> dict[str, tuple[str, ...]]:
    """Map repository folders with a file that a process has open or mapped to `NAME (pid N)`.

    A process in a container sees the cache under another path; there any cache is taken for this one.
    """
    own_view = _link(Path("/proc/self/ns/mnt"))
    users: dict[str, set[str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        prefix = f"{hub.resolve()}/" if _link(process / "ns" / "mnt") == own_view else "/hub/"
        for name in _names(process):
            before, found, rest = name.partition(prefix + PREFIX)
            if found and (not before or prefix == "/hub/"):
                folder = PREFIX + rest.partition("/")[0]
                users.setdefault(folder, set()).add(f"{_title(process)} (pid {process.name})")
    return {folder: tuple(sorted(found)) for folder, found in users.items()}


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _names(process: Path) -> Iterator[str]:
    """Yield paths that a process has open or mapped; none for one that has ended or is another user's."""
    try:
        yield from map(_link, (process / "fd").iterdir())
        for line in (process / "maps").read_text(errors="replace").splitlines():
            yield line[line.find("/") :] if "/" in line else ""
    except OSError:
        return


def _title(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "process"
