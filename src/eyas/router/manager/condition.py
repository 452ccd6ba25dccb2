"""The condition of a backend, as those who watch it report it to the manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["CAUSES", "Cause", "Condition", "ConditionState"]

# unknown: not looked at yet. loading: it starts, and requests may wait for it. ready: it serves. out: it must not,
# since it is another model, failed its canary, repeats itself or was stopped. idle: it is not loaded, and a request
# that waits for it has it loaded. unloading: it ends what it answers, then it is idle.
ConditionState = Literal["unknown", "loading", "ready", "out", "idle", "unloading"]
# Why it is out, for metrics. failed: its plan did not start, or its process ended. stopped: a person did that. memory:
# there is no room for it.
Cause = Literal["another_model", "canary", "loops", "failed", "stopped", "memory"]
CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """State of a backend as far as it is known. Its breaker is something else: that is the manager's."""

    state: ConditionState = "unknown"
    reason: str = ""  # for people, in `loading` and `out`
    cause: Cause | None = None  # in `out`
    eta_s: float | None = None  # until it is ready, in `loading`: what its plan allows, less what has passed
    model: str | None = None  # the model's name there
    is_ours: bool = False  # an eyas server, which speaks every dialect of the router
