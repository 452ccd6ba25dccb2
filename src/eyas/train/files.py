"""Writes files that are whole or as they were before, whenever the process or the machine stops."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["PARTIAL", "flush_folder", "write_whole"]

PARTIAL = ".partial-"  # of a name, while the file or folder is written


def write_whole(path: Path, data: bytes) -> None:
    """Write a hidden neighbour, flush it to the disk and rename it. Raises OSError, and leaves nothing of it then."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        flush_folder(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
