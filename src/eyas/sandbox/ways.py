"""The two ways into a sandbox: bubblewrap, and our own `enter.py` with user namespaces. Each is a command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from eyas.sandbox.enter import GUEST, is_whole_machine
from eyas.sandbox.layout import DEVICES, SCRATCH, Layout
from eyas.sandbox.limits import Limits

__all__ = ["BUBBLEWRAP", "NAMESPACES", "Way", "find_bubblewrap", "with_bubblewrap", "with_namespaces"]

Way = Callable[[Layout, Limits, Sequence[str]], list[str]]
"""Returns the command that runs a command inside; descriptors and the environment are passed on."""

BUBBLEWRAP, NAMESPACES = "bubblewrap", "user namespaces"
OLDEST_BUBBLEWRAP = (0, 7)  # the first with --size


def find_bubblewrap() -> str | None:
    """Return the path of a bubblewrap that is new enough."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"(\d+)\.(\d+)", said)
    return path if found and tuple(map(int, found.groups())) >= OLDEST_BUBBLEWRAP else None


def with_bubblewrap(program: str) -> Way:
    """Return the way through a `bwrap` program."""

    def command(layout: Layout, limits: Limits, inner: Sequence[str]) -> list[str]:
        words = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        if os.getuid() == 0 and is_whole_machine():  # it becomes the guest inside: root is not limited
            words += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            words += ["--unshare-user", "--uid", str(GUEST), "--gid", str(GUEST)]
        words += ["--hostname", "sandbox", "--die-with-parent", "--new-session"]
        for folder in _folders_above(layout):
            words += ["--perms", "0755", "--dir", folder]  # else root's alone
        for target, link in layout.links:
            words += ["--symlink", target, link]
        for path in layout.paths:
            words += ["--ro-bind", path, path]
        for path in DEVICES:
            words += ["--dev-bind", path, path]
        words += ["--perms", "1777", "--size", str(limits.scratch_bytes), "--tmpfs", SCRATCH, "--remount-ro", "/"]
        return [*words, "--", *inner]

    return command


def _folders_above(layout: Layout) -> list[str]:
    """Return the folders that hold what is mounted, each after the one that it lies in."""
    paths = [*layout.paths, *DEVICES, *(link for _, link in layout.links)]
    return sorted({str(folder) for path in paths for folder in Path(path).parents} - {"/"})


def with_namespaces(layout: Layout, limits: Limits, inner: Sequence[str]) -> list[str]:
    """Return the command of the way through `enter.py`."""
    plan = {
        "paths": layout.paths,
        "links": layout.links,
        "devices": DEVICES,
        "scratch": SCRATCH,
        "scratch_bytes": limits.scratch_bytes,
        "files": limits.files,
        "command": list(inner),
    }
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("enter.py")), json.dumps(plan)]
