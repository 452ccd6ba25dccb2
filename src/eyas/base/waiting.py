"""Comments in an event stream that tell a client why it waits: `: eyas {"state":"queued","position":3,"eta_s":40}`.

The router writes them, and the async client reads them. Other clients skip them, as they do with every comment
(https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

__all__ = ["Waiting", "WaitingState", "waiting_comment", "waiting_of"]

PREFIX = b": eyas "

# queued: other requests come first. loading: a model is being loaded. reading: the model reads the prompt.
WaitingState = Literal["queued", "loading", "reading"]


class Waiting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request waits. `position` counts those before it, itself included; `eta_s` is a guess in seconds."""

    state: WaitingState
    position: int | None = None
    eta_s: float | None = None


def waiting_comment(waiting: Waiting) -> bytes:
    """Return the comment as bytes of an event stream."""
    return PREFIX + msgspec.json.encode(waiting) + b"\n\n"


def waiting_of(line: bytes) -> Waiting | None:
    """Return what a line of an event stream says of waiting; None if it is no such comment."""
    if not line.startswith(PREFIX):
        return None
    try:
        return msgspec.json.decode(line[len(PREFIX) :], type=Waiting)
    except msgspec.MsgspecError:
        return None
