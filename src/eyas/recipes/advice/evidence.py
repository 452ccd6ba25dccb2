"""Evidence for each part of a plan: how far it was tested, and by what (`data/evidence.yaml`). Never overstated."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from typing import get_args

import msgspec

from eyas.base.serving.engines import Role
from eyas.recipes.knowledge.tables import DATA, load
from eyas.recipes.plan import Box, Choice, Data, EvidenceLevel, EvidenceRow
from eyas.recipes.versions import satisfies

__all__ = ["evidence"]


class Shown(Data, frozen=True, kw_only=True):
    """Result of a test of this project for an engine's plans. `versions` is the range that it covers."""

    engine: str
    part: str
    level: EvidenceLevel
    detail: str
    test: str
    versions: str = ""
    models: tuple[str, ...] = ("*",)
    roles: tuple[Role, ...] = get_args(Role)
    containers: bool | None = None
    many_nodes: bool | None = None


@cache
def shown() -> tuple[Shown, ...]:
    return msgspec.convert(load(DATA / "evidence.yaml"), tuple[Shown, ...])


def evidence(choice: Choice, box: Box, ran_here: frozenset[tuple[str, str]] = frozenset()) -> tuple[EvidenceRow, ...]:
    """Return the best evidence for each part; a part that no test covers is "emitted only"."""
    rows = [
        EvidenceRow(part=one.part, level=one.level, detail=f"{one.detail} ({one.test})")
        for one in shown()
        if fnmatch(choice.engine, one.engine)
        and (not one.versions or satisfies(choice.version, one.versions))
        and any(fnmatch(choice.model, model) for model in one.models)
        and choice.role in one.roles
        and one.containers in (None, choice.image is not None)
        and one.many_nodes in (None, box.nodes > 1)
    ]
    if not any(row.part == "command" for row in rows):
        rows.insert(0, EvidenceRow(part="command", level="emitted only", detail="no parser of this version was asked"))
    answer = EvidenceRow(part="answers", level="emitted only", detail=f"never ran on {box.name} for us")
    if box.is_probed and (choice.model, choice.engine) in ran_here:
        answer = EvidenceRow(part="answers", level="ran on this hardware", detail="a deployment here became ready")
    return (*rows, answer)
