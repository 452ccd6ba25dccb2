"""Models without a checkpoint of their own: the demo model in the package, none at all, random weights. Names only."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DEMO", "DEMO_NAME", "NULL_NAME", "OWN_HEAD", "RANDOM_NAME", "is_null", "random_shape"]

DEMO_NAME = "demo"  # what people type for it
NULL_NAME = "null"  # the engine that computes nothing
RANDOM_NAME = "random"  # before a colon and a shape: weights that are made in memory
DEMO = Path(__file__).parents[1] / "demo"
OWN_HEAD = "eagle3"  # folder inside a target's folder


def is_null(model: str) -> bool:
    """Whether this names the engine that computes nothing: `null`, or `null:` and the pace of its rounds."""
    return model.partition(":")[0] == NULL_NAME


def random_shape(model: str) -> str | None:
    """Return the shape that `random:SHAPE` names; None for other models."""
    name, colon, shape = model.partition(":")
    return shape if name == RANDOM_NAME and colon else None
