"""Sizes for people."""

from __future__ import annotations

__all__ = ["readable"]


def readable(num_bytes: float) -> str:
    """Format a size, e.g. `512 B`, `25.0 MiB`, `22.41 GiB`."""
    if num_bytes < 1024:
        return f"{num_bytes:.0f} B"
    for unit in ("KiB", "MiB"):
        num_bytes /= 1024
        if num_bytes < 1024:
            return f"{num_bytes:.1f} {unit}"
    return f"{num_bytes / 1024:.2f} GiB"
