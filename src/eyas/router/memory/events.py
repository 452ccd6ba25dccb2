"""Events that a pool's policy decides on, and the effects that it answers with.

All are plain data with their times beside them, so a log of events replays the decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

__all__ = [
    "Effect",
    "Event",
    "Fails",
    "Learnt",
    "Load",
    "Looked",
    "NoteKind",
    "Noted",
    "Ordered",
    "Reading",
    "State",
    "Stood",
    "Unload",
    "Usage",
    "Waits",
]

# idle: not loaded, a request for it loads it. unloading: it ends its answers, or its processes end. out: it must not
# serve; a person has stopped it, or it failed.
State = Literal["idle", "loading", "ready", "unloading", "out"]


class Reading(Struct, frozen=True):
    """A pool's memory in bytes; `owners` is what the processes of each backend hold of it, as far as that is known.

    `some` and `full` are shares of the last 10 s in which tasks stalled for memory, in percent
    (https://docs.kernel.org/accounting/psi.html); 0 where the pool has none.
    """

    total: int
    used: int
    owners: Mapping[str, int]
    some: float = 0.0
    full: float = 0.0


class Usage(Struct, frozen=True):
    """Requests of a backend: how many it has, how many it has been sent so far."""

    in_flight: int
    num_sent: int


# -- what happens ------------------------------------------------------------------------------------------------------


class Looked(Struct, frozen=True, tag=True):
    """Event: a look at everything. `reading` is None where nothing was measured; `fault` says why it could not be.

    `waiting` has the backends that requests wait for, with the time at which the oldest of these came.
    """

    waiting: Mapping[str, float]
    usage: Mapping[str, Usage]
    reading: Reading | None = None
    fault: str = ""


class Stood(Struct, frozen=True, tag=True):
    """Event: a watcher has seen a backend in another state."""

    backend: str
    state: State


class Ordered(Struct, frozen=True, tag=True):
    """Event: a person's order."""

    backend: str
    order: Literal["load", "unload", "pin", "unpin"]


Event = Looked | Stood | Ordered

# -- what follows ------------------------------------------------------------------------------------------------------


class Load(Struct, frozen=True, tag=True):
    """Effect: start it."""

    backend: str


class Unload(Struct, frozen=True, tag=True):
    """Effect: let it finish its answers for `drain_s` seconds, then stop it."""

    backend: str
    reason: str
    drain_s: float


class Waits(Struct, frozen=True, tag=True):
    """Effect: requests wait for it, and it for memory."""

    backend: str
    reason: str


class Fails(Struct, frozen=True, tag=True):
    """Effect: it cannot be loaded; requests that wait for it are refused, and for `again_s` seconds those that come."""

    backend: str
    reason: str
    again_s: float


class Learnt(Struct, frozen=True, tag=True):
    """Effect: its footprint is now known to be this, in bytes."""

    backend: str
    peak: int
    steady: int


# pressure: the level has changed. larger: it takes more than it declared. late: its memory has not come back in time.
# unknown: the memory cannot be measured. The others are of loads and evictions.
NoteKind = Literal["pressure", "load", "loaded", "unload", "unloaded", "late", "larger", "unknown", "refused"]


class Noted(Struct, frozen=True, tag=True):
    """Effect: a line for people, with the time that it took."""

    kind: NoteKind
    text: str
    backend: str | None = None
    seconds: float | None = None


Effect = Load | Unload | Waits | Fails | Learnt | Noted
