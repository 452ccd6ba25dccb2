"""Plain text of the demo model: the source of the standard library modules that it knows, docstrings included."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from facts import MODULES

__all__ = ["HELD_OUT_MODULES", "read_sources"]

HELD_OUT_MODULES = ("textwrap", "bisect", "fnmatch", "shlex", "sched")  # whole files that training never sees


def read_sources(*, held_out: bool = False) -> list[tuple[str, str]]:
    """(module, text) of the running interpreter's library, non-ASCII files left out."""
    texts = []
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.has_location or spec.origin is None or (module in HELD_OUT_MODULES) != held_out:
            continue
        path = Path(spec.origin)
        if path.suffix != ".py":
            continue
        text = path.read_text(encoding="utf-8")
        if text.isascii():
            texts.append((module, text))
    return texts
