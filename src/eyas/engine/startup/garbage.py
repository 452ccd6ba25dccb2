"""Python's garbage collector in the engine's process: a step makes thousands of objects, and none of them in cycles."""

from __future__ import annotations

import gc

__all__ = ["collect_seldom"]

MOST_NEW_OBJECTS = 100_000  # a step of 512 sequences makes about 4,000 and frees as many


def collect_seldom() -> None:
    """Collect what loading left, and from now on look for cycles seldom, and never among the objects of now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(MOST_NEW_OBJECTS, 10, 10)
