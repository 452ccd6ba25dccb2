"""Says why there is no sandbox on this machine, and what would give it one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["refusal", "shown"]

# A file of the kernel, what it says where it stands in the way, and what to do.
SWITCHES = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
CONTAINERS = ("/.dockerenv", "/run/.containerenv")
OLDEST_KERNEL = (5, 14)  # counts processes of a user by namespace, and makes mounts read-only with all below them


def read(path: str) -> str | None:
    """Return the text of a file of the kernel, None if there is none."""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def refusal(failures: dict[str, str], *, has_bubblewrap: bool, read: Callable[[str], str | None] = read) -> str:
    """Return one line: what was tried with what came of it, and what to do. `read` reads files of the machine."""
    tried = "; ".join(f"{way}: {why}" for way, why in failures.items()) or "nothing could be tried"
    release = read("/proc/sys/kernel/osrelease")
    switch = next((advice for path, value, advice in SWITCHES if read(path) == value), None)
    if release is None:
        advice = "Python programs of a model are run on Linux alone"
    elif tuple(map(int, release.split("-")[0].split(".")[:2])) < OLDEST_KERNEL:
        advice = f"it takes Linux {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]} or newer, and this is {release}"
    elif switch is not None:
        advice = f"as root: {switch}"
    elif any(read(path) is not None for path in CONTAINERS):
        advice = "start this container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    elif not has_bubblewrap:
        advice = "install bubblewrap 0.7 or newer (apt-get install bubblewrap, dnf install bubblewrap)"
    else:
        advice = "allow user namespaces to this user"
    return f"there is no sandbox for Python on this machine ({tried}); {advice}"


def shown(error: str) -> str:
    """Return the last line of what a failed way has said."""
    lines = [line for line in error.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"it said nothing (as user {os.getuid()})"
