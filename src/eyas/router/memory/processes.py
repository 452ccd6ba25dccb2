"""Memory of processes on this machine: who belongs to a launch, and what they take together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["members", "pss"]

KIB = 1024
PROC = Path("/proc")


def members(launches: Mapping[str, Iterable[str]]) -> dict[str, list[int]]:
    """Return the processes of each owner. `launches` are marks of fleet: `process PID START BOOT`, `container ID`.

    A launched process leads a session, to which its children belong; those of a container share its control group.
    """
    sessions: dict[int, str] = {}
    containers: dict[str, str] = {}
    for owner, marks in launches.items():
        for mark in marks:
            kind, _, rest = mark.partition(" ")
            first = rest.partition(" ")[0]
            if kind == "process" and first.isdigit():
                sessions[int(first)] = owner
            elif kind == "container" and first:
                containers[first] = owner
    found: dict[str, list[int]] = {owner: [] for owner in launches}
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            session = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[3])
            found_owner = sessions.get(session)
            if found_owner is None and containers:
                group = (folder / "cgroup").read_text(errors="replace")
                found_owner = next((owner for container, owner in containers.items() if container in group), None)
            if found_owner is not None:
                found[found_owner].append(int(folder.name))
    return found


def pss(pids: Iterable[int]) -> int:
    """Return the bytes that processes hold together: a page that several share counts once, over those that do.

    0 for processes that have ended, or belong to another user.
    """
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError):
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * KIB
    return total
