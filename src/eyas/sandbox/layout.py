"""Paths of the machine that a program in the sandbox sees: Python and the libraries that it needs, read-only.

Everything else is missing: `/home`, `/etc`, `/proc`, `/sys`, other programs. The one folder to write in is `/tmp`,
which is empty at the start, in memory, and gone at the end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DEVICES", "ENVIRONMENT", "SCRATCH", "Layout", "find_layout"]

SCRATCH = "/tmp"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
LIBRARIES = ("lib", "lib64")
LOADER_CACHE = "/etc/ld.so.cache"
ENVIRONMENT = {  # all of it: keys and tokens stay outside
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",  # else each thread takes 64 MiB of addresses
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Paths that are mounted read-only where they are, symbolic links with their targets, and the interpreter."""

    paths: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # target, link
    python: str


def find_layout() -> Layout:
    """Return the layout for the interpreter that runs this, without its virtual environment."""
    base, python = Path(sys.base_prefix).resolve(), _base_python().resolve()
    paths, links = [], []
    for folder in (Path("/usr"), Path("/"), base):
        for path in (folder / name for name in LIBRARIES):
            if path.is_symlink():
                links.append((str(path.readlink()), str(path)))
            elif path.is_dir():
                paths.append(str(path))
    paths += [str(python), *([LOADER_CACHE] if Path(LOADER_CACHE).is_file() else [])]
    return Layout(paths=tuple(dict.fromkeys(paths)), links=tuple(dict.fromkeys(links)), python=str(python))


def _base_python() -> Path:
    """Return the interpreter behind a virtual environment, as `venv` itself finds it."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable)
