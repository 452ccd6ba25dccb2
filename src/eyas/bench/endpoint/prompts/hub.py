"""Prompts from a data set of the hub, read by Hugging Face's library `datasets`, which is imported when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from eyas.base.errors import UserError
from eyas.bench.endpoint.prompts.files import TALK_FIELDS, TEXT_FIELDS, prompt_from
from eyas.bench.endpoint.prompts.prompt import Prompt

__all__ = ["read_hub"]

MAX_PROMPTS = 1000
SPLITS = ("test", "validation", "train")


def read_hub(name: str) -> list[Prompt]:
    """Return the first prompts of `OWNER/NAME[:SPLIT]`, or of a folder that `datasets` can load. Raises UserError."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError(
            f"hub:{name} needs Hugging Face's library datasets; install it with: pip install datasets"
        ) from None
    dataset, _, split = name.partition(":")
    try:
        loaded = datasets.load_dataset(dataset, streaming=False)
    except Exception as error:  # it raises errors of HTTP, of files, of formats and its own
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"hub:{name} cannot be loaded ({why}); check name and connection, or give its questions as JSON lines"
        ) from None
    splits = list(loaded)
    chosen = split or next((known for known in SPLITS if known in splits), splits[0])
    if chosen not in splits:
        raise UserError(f"hub:{dataset} has no split '{chosen}'; it has {', '.join(splits)}")
    return _prompts(dataset, loaded[chosen])


def _prompts(name: str, entries: Iterable[Mapping[str, Any]]) -> list[Prompt]:
    short = name.rstrip("/").rpartition("/")[2]
    try:
        found = [prompt_from(entry, short, number) for number, entry in enumerate(islice(entries, MAX_PROMPTS), 1)]
    except ValueError as error:
        raise UserError(f"hub:{name}: {error}") from None
    prompts = [prompt for prompt in found if prompt is not None]
    if not prompts:
        raise UserError(f"hub:{name} has no field with prompts: one of {', '.join(TEXT_FIELDS + TALK_FIELDS)}")
    return prompts
