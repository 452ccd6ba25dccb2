"""The demo model that ships in the package, and where a checkpoint keeps a head of its own. Names and paths only."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DEMO", "DEMO_NAME", "NULL_NAME", "OWN_HEAD", "is_null"]

DEMO_NAME = "demo"  # what people type for it
NULL_NAME = "null"  # the engine that computes nothing
DEMO = Path(__file__).parents[1] / "demo"
OWN_HEAD = "eagle3"  # folder inside a target's folder


def is_null(model: str) -> bool:
    """Whether this names the engine that computes nothing: `null`, or `null:` and the pace of its rounds."""
    return model.partition(":")[0] == NULL_NAME
