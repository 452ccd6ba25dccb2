"""Looks from outside at what a tree of processes uses, by `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eyas.sandbox.layout import SCRATCH
from eyas.sandbox.limits import Limits

__all__ = ["Usage", "beyond", "children", "look"]

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")  # a second


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Sums over the processes that live now. `cpu_s` has that of children that ended and were waited for."""

    memory_bytes: int = 0
    cpu_s: float = 0.0
    files: int = 0  # in the scratch folder


def beyond(usage: Usage, limits: Limits) -> str | None:
    """Return which limit is passed, in words, if one is."""
    if usage.memory_bytes > limits.memory_bytes:
        return f"used more than {limits.memory_bytes >> 20} MiB of memory"
    if usage.cpu_s > limits.cpu_s:
        return f"used more than {limits.cpu_s} s of CPU time"
    if usage.files > limits.files:
        return f"made more than {limits.files} files"
    return None


def look(pid: int) -> Usage:
    """Return what a process and all below it use now. What has gone meanwhile counts nothing."""
    memory = files = 0
    cpu_s = 0.0
    for process in _tree(pid):
        with suppress(OSError, ValueError, IndexError):
            memory += _memory(process)
            cpu_s += _cpu_s(process)
            files = max(files, _files(process))
    return Usage(memory_bytes=memory, cpu_s=cpu_s, files=files)


def children(pid: int) -> list[int]:
    """Return the processes that a process, or one of its threads, has started; none if it has gone."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path("/proc", str(pid), "task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _tree(pid: int) -> Iterator[Path]:
    left = [pid]
    while left:
        process = left.pop()
        yield Path("/proc", str(process))
        left += children(process)


def _memory(process: Path) -> int:
    """Return the bytes of a process, those that it shares divided by the sharers."""
    try:
        text = (process / "smaps_rollup").read_text()
    except PermissionError:
        return int((process / "statm").read_text().split()[1]) * PAGE
    return int(text.partition("\nPss:")[2].split()[0]) * 1024


def _cpu_s(process: Path) -> float:
    """Return seconds of a process and its children that ended; fields 14 to 17 of proc_pid_stat(5)."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def _files(process: Path) -> int:
    """Return how many files the scratch folder has, as a process of the sandbox sees it; 0 outside of it."""
    root = process / "root"
    try:
        if root.stat().st_dev == Path("/").stat().st_dev:
            return 0
        found = os.statvfs(root / SCRATCH[1:])
    except OSError:
        return 0
    return found.f_files - found.f_ffree
