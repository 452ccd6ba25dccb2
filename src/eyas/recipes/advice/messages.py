"""Whether an engine's own `/v1/messages` does for Claude Code, or needs our router in front (`data/messages.yaml`)."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache

from msgspec import Struct

from eyas.recipes.knowledge.tables import DATA, read
from eyas.recipes.plan import Choice, Note
from eyas.recipes.records import Record
from eyas.recipes.versions import satisfies

__all__ = ["Messages", "messages", "why_router"]


class Flaw(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that an engine's front gets wrong, in words that follow the engine's name."""

    text: str
    versions: str = "*"
    models: tuple[str, ...] = ("*",)


class Messages(Record, frozen=True, kw_only=True):
    """Knowledge about an engine's front for Anthropic's messages. `speaks`: the versions that have one; "": none."""

    speaks: str
    flaws: tuple[Flaw, ...] = ()


@cache
def messages() -> dict[str, Messages]:
    """Return the entries by engine."""
    return read(DATA / "messages.yaml", Messages)


def why_router(choice: Choice) -> Note | None:
    """Return why Claude Code needs our router in front of the planned engine; None where it does not."""
    known = messages()[choice.engine]
    source = "; ".join(known.sources)
    if not known.speaks or not satisfies(choice.version, known.speaks):
        since = f" before {known.speaks.removeprefix('>=')}" if known.speaks else ""
        return Note(text=f"has no /v1/messages{since}", source=source)
    for flaw in known.flaws:
        if satisfies(choice.version, flaw.versions) and any(fnmatch(choice.model, model) for model in flaw.models):
            return Note(text=flaw.text, source=source)
    return None
