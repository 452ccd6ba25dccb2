"""Files of results: one a head, written whole, so that what is there is finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.train.files import write_whole

__all__ = ["read_results", "result_path", "write"]


def result_path(out: Path, arm: str, seed: int) -> Path:
    return out / "results" / f"{arm}-{seed}.json"


def write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"{json.dumps(value)}\n".encode())


def read_results(out: Path) -> dict[str, dict[int, Any]]:
    """Return what was counted, by arm and seed."""
    found: dict[str, dict[int, Any]] = {}
    for path in sorted((out / "results").glob("[!.]*.json")):
        one = json.loads(path.read_text())
        found.setdefault(one["arm"], {})[one["seed"]] = one["counts"]
    return found
