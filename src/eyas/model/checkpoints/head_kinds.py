"""The kinds of draft heads by name, which is also that of their drafter. A new kind is a file and a line below."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.base.errors import UserError
from eyas.model.checkpoints.eagle3 import EAGLE3
from eyas.model.checkpoints.head_kind import HeadKind
from eyas.model.checkpoints.reading import config_file
from eyas.model.checkpoints.shards import read_json

__all__ = ["HEAD_KINDS", "find_kind", "kind_of"]

HEAD_KINDS: dict[str, HeadKind] = {"eagle3": EAGLE3}


def kind_of(raw: Mapping[str, Any]) -> str | None:
    """Return the kind of head that a config.json is of, None if it is of no known one."""
    return next((name for name, kind in HEAD_KINDS.items() if kind.recognises(raw)), None)


def find_kind(folder: Path) -> str:
    """Return the kind of the head in `folder`. Raises UserError if there is none, or none of a known kind."""
    source = config_file(folder)
    raw = read_json(source)
    name = kind_of(raw)
    if name is None and raw.get("model_type") == "gpt_oss":
        raise UserError(f"{source} is that of a whole gpt-oss model; --draft wants {_titles()}")
    if name is None:
        keys = ("architectures", "model_type", "speculators_model_type")
        said = ", ".join(f"{key} {raw[key]!r}" for key in keys if key in raw) or "it names no architecture"
        raise UserError(f"{source} is of no known kind of draft head ({said}); --draft wants {_titles()}")
    return name


def _titles() -> str:
    return " or ".join(kind.title for kind in HEAD_KINDS.values())
