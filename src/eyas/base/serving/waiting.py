"""Comments in an event stream that tell a client why it waits: `: eyas {"state":"queued","position":3,"eta_s":40}`.

The router writes them, and the async client reads them. Other clients skip them, as they do with every comment
(https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, get_args

__all__ = ["Waiting", "WaitingState", "waiting_comment", "waiting_of"]

PREFIX = b": eyas "

# queued: other requests come first. loading: a model is being loaded. reading: the model reads the prompt.
WaitingState = Literal["queued", "loading", "reading"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Reason why a request waits. `position` counts those before it, itself included; `eta_s` is a guess in seconds.

    `backend` has the request; its name stands here since headers may have gone before it was chosen.
    """

    state: WaitingState
    position: int | None = None
    eta_s: float | None = None
    backend: str | None = None


def waiting_comment(waiting: Waiting) -> bytes:
    """Return the comment as bytes of an event stream."""
    known = {name: value for name, value in asdict(waiting).items() if value is not None}
    return PREFIX + json.dumps(known, separators=(",", ":")).encode() + b"\n\n"


def waiting_of(line: bytes) -> Waiting | None:
    """Return what a line of an event stream says of waiting; None if it is no such comment."""
    if not line.startswith(PREFIX):
        return None
    try:
        fields = json.loads(line[len(PREFIX) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("state") not in get_args(WaitingState):
        return None
    position, eta_s, backend = fields.get("position"), fields.get("eta_s"), fields.get("backend")
    return Waiting(
        state=fields["state"],
        position=position if isinstance(position, int) else None,
        eta_s=float(eta_s) if isinstance(eta_s, int | float) else None,
        backend=backend if isinstance(backend, str) else None,
    )
