"""Runs on the machine where models are to lie: says what it lacks of a repository of the hub, and fetches it.

It is sent there as text, so it imports only the standard library and huggingface_hub, of any version since 0.26, and
runs on Python 3.9. Request: JSON in the environment. Answer: one line of JSON after `ANSWER`. It ends when
the connection that started it closes.

Large files are fetched here and not by snapshot_download, which (since 2.0) throws away what an interrupted download
had; here they go on where they stopped and their sha256 is checked. huggingface_hub does all else.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import select
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import Any

REQUEST = "EYAS_HUB_REQUEST"  # environment variable: what is asked
HOME = "EYAS_HUB_HOME"  # environment variable: HF_HOME
ANSWER = "answer: "
PARTIAL = ".incomplete"
WORKERS = 4
LARGEST_OVER_HTTP = 50_000_000_000  # the hub's own limit; larger files need its other protocol


class Problem(Exception):
    """A failure to report: `kind` is a word that the other side knows, `detail` is added to the message."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = detail


def main() -> None:
    """Carry out the request and print the answer."""
    threading.Thread(target=_end_unheard, daemon=True).start()
    request = json.loads(os.environ.pop(REQUEST))
    try:
        repo = Repo(request, Path(os.environ[HOME]))
        answer = repo.look() if request["action"] == "look" else repo.fetch()
    except Problem as problem:
        answer = {"problem": problem.kind, "detail": problem.detail}
    except ModuleNotFoundError as error:
        answer = {"problem": "no module", "detail": str(error.name)}
    except OSError as error:
        answer = {"problem": _kind_of(error), "detail": str(error)[:300]}
    print("\n" + ANSWER + json.dumps(answer))


def _end_unheard() -> None:
    """End the process once its caller is gone (Ctrl-C, a lost connection) and cannot read the answer."""
    poll = select.poll()
    poll.register(sys.stdout, 0)  # errors are always reported
    poll.poll()
    os._exit(1)


def _kind_of(error: OSError) -> str:
    if isinstance(error, ConnectionError):
        return "interrupted"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "disk"
    return "not writable" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else "other"


class Repo:
    """A repository of the hub and its folder in the cache."""

    def __init__(self, request: dict[str, Any], home: Path) -> None:
        from huggingface_hub import get_token

        self.repo = request["repo"]
        self.revision = request["revision"] or "main"
        self.include: list[str] = request["include"]
        self.exclude: list[str] = request["exclude"]
        self.cache = home / "hub"
        self.folder = self.cache / ("models--" + self.repo.replace("/", "--"))
        self.blobs = self.folder / "blobs"
        self.commit = ""
        self.token: str | None = request["token"] or get_token()

    def look(self) -> dict[str, Any]:
        """Report the wanted files and how much of each is here: {"files": [[blob, size, here], ...], ...}."""
        try:
            files = self._wanted()
        except Problem:
            if self._is_usable():
                return {"files": [], "is_complete": True, "free": self._free(), "blobs": ""}
            raise
        missing = [file for file in files if not self._has(file)]
        if missing:
            self._check_access(missing[0])
            self._check_writable()
        return {
            "files": [[file.blob, file.size, self._here(file)] for file in files],
            "is_complete": not missing,
            "free": self._free(),
            "blobs": str(self.blobs),
        }

    def fetch(self) -> dict[str, Any]:
        """Download everything that is wanted and not here; what has arrived stays if it fails."""
        files = self._wanted()
        self.blobs.mkdir(parents=True, exist_ok=True)
        pool = ThreadPoolExecutor(WORKERS)
        try:
            for done in [pool.submit(self._fetch_one, file) for file in files if not self._has(file)]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)
        ref = self.folder / "refs" / self.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(self.commit)
        return {}

    def _wanted(self) -> list[File]:
        from huggingface_hub import HfApi, errors

        try:
            info = HfApi(token=self.token).model_info(self.repo, revision=self.revision, files_metadata=True)
        except Exception as error:  # its transports (requests, httpx, httpx2, by version) share no other base
            for kind, name in (
                ("gated", "GatedRepoError"),
                ("not found", "RepositoryNotFoundError"),
                ("no revision", "RevisionNotFoundError"),
            ):
                if isinstance(error, getattr(errors, name)):
                    raise Problem(kind) from error
            raise Problem("unreachable", " ".join(str(error).split())[:200] or type(error).__name__) from error
        self.commit = str(info.sha)
        files = [File(entry) for entry in info.siblings or ()]
        return [file for file in files if self._is_wanted(file.path)]

    def _is_wanted(self, path: str) -> bool:
        """Whether a file is wanted, decided as snapshot_download does: patterns match across slashes."""
        is_included = not self.include or any(fnmatch(path, pattern) for pattern in self.include)
        return is_included and not any(fnmatch(path, pattern) for pattern in self.exclude)

    def _place(self, file: File) -> Path:
        place: Path = self.folder / "snapshots" / self.commit / file.path
        return place

    def _has(self, file: File) -> bool:
        return file.is_whole(self._place(file))

    def _here(self, file: File) -> int:
        """Return the bytes of it that need not be downloaded again."""
        blob = self.blobs / file.blob
        if file.is_whole(blob) or self._has(file):
            return file.size
        come = [path.stat().st_size for path in (blob, blob.with_name(file.blob + PARTIAL)) if path.exists()]
        return min(max(come, default=0), file.size)

    def _set_right(self, file: File) -> None:
        """Turn a truncated blob (a full disk, a crash) into a part that is resumed; huggingface_hub would keep it."""
        blob = self.blobs / file.blob
        if blob.exists() and not file.is_whole(blob):
            blob.replace(blob.with_name(file.blob + PARTIAL))
        place = self._place(file)
        if place.is_symlink() or place.exists():
            place.unlink()

    def _free(self) -> int:
        folder = self.cache
        while not folder.is_dir():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def _check_writable(self) -> None:
        folder = self.blobs
        while not folder.is_dir():
            folder = folder.parent
        if not os.access(folder, os.W_OK):
            raise Problem("not writable", str(folder))

    def _check_access(self, file: File) -> None:
        """Check access to the files: their list is public even where they are not."""
        from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

        try:
            get_hf_file_metadata(hf_hub_url(self.repo, file.path, revision=self.commit), token=self.token)
        except errors.GatedRepoError as error:
            raise Problem("gated") from error
        except Exception as error:
            raise Problem("unreachable", " ".join(str(error).split())[:200] or type(error).__name__) from error

    def _fetch_one(self, file: File) -> None:
        from huggingface_hub import hf_hub_download

        self._set_right(file)
        if file.sha256 and file.size <= LARGEST_OVER_HTTP and not (self.blobs / file.blob).exists():
            self._fetch_large(file)
        try:
            hf_hub_download(self.repo, file.path, revision=self.commit, cache_dir=self.cache, token=self.token)
        except Exception as error:
            raise self._interrupted(file, error) from error

    def _fetch_large(self, file: File) -> None:
        """Download to where huggingface_hub looks for the file, under another name until it is complete and correct."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get

        blob = self.blobs / file.blob
        partial = blob.with_name(file.blob + PARTIAL)
        with partial.open("ab") as out:
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Problem("busy") from error
            size = out.tell()
            if size > file.size:
                out.truncate(0)
                size = 0
            try:
                http_get(
                    hf_hub_url(self.repo, file.path, revision=self.commit),
                    out,
                    resume_size=size,
                    headers={"authorization": f"Bearer {self.token}"} if self.token else {},
                    expected_size=file.size,
                )
                out.flush()
            except Exception as error:
                raise self._interrupted(file, error) from error
            if _sha256(partial) != file.sha256:
                partial.unlink()
                raise Problem("corrupt", file.path)
            partial.rename(blob)

    def _interrupted(self, file: File, error: Exception) -> Exception:
        """Return `error` itself if the disk caused it, else an error of the download."""
        if isinstance(error, OSError) and _kind_of(error) in ("disk", "not writable"):
            return error
        return Problem("interrupted", f"{file.path}: {' '.join(str(error).split())[:200] or type(error).__name__}")

    def _is_usable(self) -> bool:
        """Whether the hub is not needed: every file that an index of weights names is here and complete."""
        ref = self.folder / "refs" / self.revision
        snapshot = self.folder / "snapshots" / (ref.read_text().strip() if ref.exists() else self.revision)
        indexes = list(snapshot.glob("*.index.json"))
        if not indexes:
            weights = [path for pattern in ("*.safetensors", "**/*.gguf") for path in snapshot.glob(pattern)]
            return bool(weights) and all(_is_whole(path) for path in weights)
        named = {name for index in indexes for name in json.loads(index.read_text())["weight_map"].values()}
        return all(_is_whole(snapshot / str(name)) for name in named)


class File:
    """A file of a repository: its path, size, and the name of its blob in the cache."""

    def __init__(self, entry: Any) -> None:
        self.path = str(entry.rfilename)
        self.size = int(entry.size or 0)
        self.sha256 = str(entry.lfs.sha256) if entry.lfs else ""
        self.blob = self.sha256 or str(entry.blob_id)

    def is_whole(self, path: Path) -> bool:
        return path.exists() and path.stat().st_size == self.size


def _is_whole(path: Path) -> bool:
    """Whether it exists and, for safetensors, is as long as its header says: 8 bytes of length, JSON, tensors."""
    if not path.exists() or path.suffix != ".safetensors":
        return path.exists()
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(min(length, size)))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return False
    return size == 8 + length + max(ends, default=0)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


if __name__ == "__main__":
    main()
