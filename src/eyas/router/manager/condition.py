"""The condition of a backend, as those who watch it report it to the manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Condition", "ConditionState"]

# unknown: not looked at yet. loading: it starts, and requests may wait for it. ready: it serves. out: it must not,
# since it is another model, failed its canary, repeats itself or was stopped.
ConditionState = Literal["unknown", "loading", "ready", "out"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """What is known of a backend. A breaker is something else: it belongs to the manager and counts failures."""

    state: ConditionState = "unknown"
    reason: str = ""  # for people, in `loading` and `out`
    eta_s: float | None = None  # until it is ready, in `loading`: what its plan allows, less what has passed
    model: str | None = None  # the model's name there
    is_ours: bool = False  # an eyas server, which speaks every dialect of the router
