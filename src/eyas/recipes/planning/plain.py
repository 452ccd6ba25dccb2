"""A plan once more without speculation, for an engine whose drafting has turned out to be faulty."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.recipes.engines.front import behind, has_router, with_router
from eyas.recipes.estimate import memory, speed
from eyas.recipes.knowledge.folders import head_of_folder, weight_bytes
from eyas.recipes.knowledge.tables import Knowledge, knowledge
from eyas.recipes.plan import Emission, Note, Plan
from eyas.recipes.planning.candidates import emitter
from eyas.recipes.records import Head, Model

__all__ = ["without_speculation"]


def without_speculation(plan: Plan) -> Plan:
    """Return `plan` with the same engine, model, context and place, and no head.

    Raises UserError if it has none already, or if what it starts is not what eyas would make of its choice (it was
    changed by hand, or another version wrote it): such a change would be lost.
    """
    choice, known = plan.choice, knowledge()
    if choice.method == "none":
        raise UserError(f"{choice.name} runs without speculation already")
    model = known.model(choice.model)
    head = _head(plan, model, known)
    if _emitted(plan, model, head) != plan.emission:
        raise UserError(
            f"what the plan of {choice.name} starts was changed by hand or is of another version of eyas; write it "
            "again without speculation: eyas plan --spec none --emit plan"
        )
    size = None if choice.model_path is None else weight_bytes(Path(choice.model_path))
    plain = replace(choice, method="none", head=None, head_path=None, draft_tokens=0, are_drafts_fixed=False)
    plain = replace(plain, memory_fraction=memory.default_fraction(plain, plan.box, model, None))
    room = memory.memory_map(plain, plan.box, model, None, weight_bytes=size)
    made = replace(
        plan,
        choice=plain,
        memory=room,
        speed=speed.estimate(plain, plan.box, model, None, known.measurements, max_tokens=room.max_tokens),
        reasons=(*plan.reasons, Note(text=f"no speculation: {choice.head} was taken out")),
    )
    return replace(made, emission=_emitted(made, model, None))


def _emitted(plan: Plan, model: Model, head: Head | None) -> Emission:
    emitted: Emission = emitter(plan.choice.engine).emit(behind(plan.choice), plan.box, model, head)
    return with_router(plan.choice, emitted) if has_router(plan.emission) else emitted


def _head(plan: Plan, model: Model, known: Knowledge) -> Head:
    choice = plan.choice
    if choice.head_path is not None:
        return head_of_folder(Path(choice.head_path), model, known)
    if choice.head is None:
        raise UserError(f"the plan of {choice.name} speculates and names no head")
    return known.head(choice.head)
