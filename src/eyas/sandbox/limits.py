"""Limits of a program in the sandbox. The kernel holds each, or `usage.py` looks ten times a second."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of one program, its children included where not said otherwise."""

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 512 << 20  # of all together; also of the addresses of one process
    processes: int = 32  # threads count
    scratch_bytes: int = 64 << 20
    file_bytes: int = 16 << 20  # of one file
    files: int = 4096  # in the scratch folder
    open_files: int = 64  # of one process
    output_bytes: int = 16 << 10  # what it prints, errors too
    code_bytes: int = 256 << 10
