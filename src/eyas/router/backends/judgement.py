"""Judges what a watcher has seen of a backend: a pure function of its settings, what is remembered, and a look at it.

A backend is ready once it has the right model and has answered a canary question sensibly. After an outage it may be
another process, so both are asked for again; what a person or the guard has taken out stays out (`watcher.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from eyas.base.errors import nearest
from eyas.router.manager.condition import Condition
from eyas.router.settings.schema import BackendSettings

__all__ = ["Look", "Memory", "Verdict", "after_canary", "judge"]

HUNG_S = 30.0  # an outage: it was ready, and has not answered well for so long; requests open its breaker earlier
LATEST = ":latest"  # Ollama's tag where none is named
MAX_SHOWN = 5

# listed: it answers, with the names of its models if it has such a list. loading: it says so. gone: no connection, or
# one that ended. late: no answer in time. keyless: it refuses the key. other: an answer that is none.
LookKind = Literal["listed", "loading", "gone", "late", "keyless", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Result of asking a backend for its models. `names` are all that it knows, of `num_models` models.

    `router` is the id of the router that has answered, if one has.
    """

    kind: LookKind
    text: str = ""
    names: tuple[str, ...] = ()
    num_models: int = 1
    is_ours: bool = False
    router: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Facts that are remembered of a backend from one look to the next."""

    model: str | None = None  # its name at the first sight
    is_sound: bool = False  # it has answered the canary since the last outage
    fault: str | None = None  # what was wrong with the canary's answer
    missed_since: float | None = None  # the first of the looks that went wrong in a row

    @property
    def is_asked(self) -> bool:
        return self.is_sound or self.fault is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Judgement of a backend. `condition` is None where nothing new is known; `model` is what the canary is to ask."""

    memory: Memory
    condition: Condition | None
    wants_canary: bool = False
    model: str | None = None


def judge(settings: BackendSettings, memory: Memory, look: Look, now: float, *, instance: str) -> Verdict:
    """Return what a look says of a backend; `instance` is the id of this router."""
    if look.router == instance:
        reason = "its address is that of this router, which would ask itself"
        return Verdict(memory=Memory(), condition=_out("failed", reason))
    match look.kind:
        case "listed":
            return _listed(settings, replace(memory, missed_since=None), look)
        case "loading":
            forgetful = Memory(model=memory.model)
            return Verdict(memory=forgetful, condition=Condition(state="loading", reason=look.text or "loads a model"))
        case "keyless":
            forgetful = Memory(model=memory.model)
            return Verdict(memory=forgetful, condition=_out("failed", look.text))
    since = now if memory.missed_since is None else memory.missed_since
    if look.kind != "gone" and memory.is_asked and now - since < HUNG_S:
        return Verdict(memory=replace(memory, missed_since=since), condition=None)
    forgetful = Memory(model=memory.model, missed_since=since)
    return Verdict(memory=forgetful, condition=Condition(reason=look.text))


def _listed(settings: BackendSettings, memory: Memory, look: Look) -> Verdict:
    is_ours = look.is_ours or settings.engine == "eyas"
    model, fault = _model(settings, memory, look)
    if fault is not None:
        return Verdict(memory=Memory(model=memory.model), condition=_out("another_model", fault, is_ours=is_ours))
    memory = replace(memory, model=model)
    if memory.fault is not None:
        condition = _out("canary", memory.fault, model=model, is_ours=is_ours)
        return Verdict(memory=memory, condition=condition)
    if memory.is_sound:
        return Verdict(memory=memory, condition=Condition(state="ready", model=model, is_ours=is_ours))
    waiting = Condition(reason="is asked a question first", model=model, is_ours=is_ours)
    return Verdict(memory=memory, condition=waiting, wants_canary=True, model=model)


def _model(settings: BackendSettings, memory: Memory, look: Look) -> tuple[str | None, str | None]:
    """Return the model's name there, or what is wrong with it."""
    wanted = settings.model or memory.model
    if not look.names:
        return wanted, None
    shown = ", ".join(look.names[:MAX_SHOWN]) + (", ..." if len(look.names) > MAX_SHOWN else "")
    if wanted is not None:
        if wanted in look.names or f"{wanted}{LATEST}" in look.names:
            return wanted, None
        if settings.model is None:
            return None, f"had the model {wanted} and now has {shown}"
        return None, f"has {shown}, not {wanted}{nearest(wanted, look.names)}"
    if look.num_models > 1:
        return None, f"has several models ({shown}); name one: model: {look.names[0]}"
    return look.names[0], None


def after_canary(memory: Memory, fault: str | None) -> Memory:
    """Return the memory after the canary; `fault` is what was wrong with its answer."""
    return replace(memory, is_sound=fault is None, fault=fault)


def _out(
    cause: Literal["another_model", "canary", "failed"],
    reason: str,
    *,
    model: str | None = None,
    is_ours: bool = False,
) -> Condition:
    return Condition(state="out", cause=cause, reason=reason, model=model, is_ours=is_ours)
