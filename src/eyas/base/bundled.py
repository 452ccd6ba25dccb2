"""The demo model that ships in the package, and where a checkpoint keeps a head of its own. Paths only."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DEMO", "DEMO_NAME", "NULL_NAME", "OWN_HEAD"]

DEMO_NAME = "demo"  # what people type for it
NULL_NAME = "null"  # the engine that computes nothing
DEMO = Path(__file__).parents[1] / "demo"
OWN_HEAD = "eagle3"  # folder inside a target's folder
