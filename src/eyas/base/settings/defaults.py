"""Sampling defaults that a checkpoint brings along, in its generation_config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from eyas.base.errors import InvalidRequest, UserError
from eyas.base.types import FILTERS, SamplingParams

__all__ = ["sampling_defaults"]

FILE = "generation_config.json"
NAMES = ("temperature", *FILTERS, "repetition_penalty")


def sampling_defaults(folder: Path) -> Mapping[str, float]:
    """Return what `folder` sets of the fields that SamplingParams shares with Hugging Face.

    Only a file with `do_sample` true speaks of sampling: transformers ignores the values of others. A missing file
    says nothing. Raises UserError for a file that cannot be read and for values that no request could have.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); fetch it again, or remove it") from error
    if not isinstance(content, dict) or content.get("do_sample") is not True:
        return {}
    values = {name: content[name] for name in NAMES if content.get(name) is not None}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else int | float):
            raise UserError(f"{path}: {name} must be a number, got {value!r}")
    try:
        SamplingParams(**values)
    except InvalidRequest as error:
        raise UserError(f"{path}: {error}") from error
    return values
