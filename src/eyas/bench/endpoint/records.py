"""Records of a run against an endpoint: requests, windows of load, acceptance counts. Pure data, kept as JSON.

Figures are computed from it (`figures.py`) and never stored in its place, so that anyone can compute them again. Times
are seconds of one monotonic clock since the run began, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from eyas.client.chunks import ChunkKind
from eyas.client.endpoint.acceptance.counts import Counts

__all__ = ["Chunk", "ChunkKind", "Counts", "Lag", "Load", "Memory", "Mode", "Record", "Stamp", "Window"]

# natural: an answer ends where the model ends it. fixed: exactly `max_tokens` tokens, past its natural end
# (`ignore_eos`), which is for the speed of an engine and says nothing of acceptance on real answers.
Mode = Literal["natural", "fixed"]


class Chunk(Struct, frozen=True, array_like=True):
    """One chunk of a stream that brought something: text of any kind, never a role alone or `usage`.

    `tokens` are those that the server says have come so far, where its chunks carry usage (`continuous_usage_stats`).
    """

    at_s: float
    kind: ChunkKind
    num_chars: int
    tokens: int | None = None


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Token counts are the server's own (`usage`); None is what it did not say.

    `scheduled_s` is when it was due: in a closed loop when the client came to it, in an open one by the clock.
    `error` is one line; a request that failed or was cut short counts in no figure but that of failures. `is_measured`:
    due in the steady part; the others began in the warm-up, and count for what arrives in the steady part alone.
    """

    prompt: str  # id of its prompt: set/number
    category: str
    scheduled_s: float
    sent_s: float
    ended_s: float
    chunks: tuple[Chunk, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    counts: Counts | None = None  # where the server says them of each request
    is_measured: bool = True
    text: str = ""  # reasoning and text, kept only where it is asked for


class Load(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Arrival of requests: `concurrency` at a time, each followed by the next (closed loop), or `rate` a second.

    In an open loop gaps are exponential (Poisson), and none waits for another.
    """

    concurrency: int | None = None
    rate: float | None = None
    mode: Mode = "natural"
    max_tokens: int = 0

    def text(self) -> str:
        """Format it: `4 at once`, `2.5 a second`."""
        return f"{self.concurrency} at once" if self.concurrency is not None else f"{self.rate:g} a second"


class Lag(Struct, frozen=True, kw_only=True):
    """Delay of the measuring process itself, in seconds: of its event loop, and of requests against their schedule.

    In a closed loop the latter runs from when a place becomes free.
    """

    loop_p99_s: float
    send_p99_s: float
    cpu_share: float  # of one core


class Memory(Struct, frozen=True, kw_only=True):
    """The most memory in use during a window: all of the machine's, as `source` counts it."""

    used_bytes: int
    source: str  # "driver": of the GPUs; "MemAvailable": MemTotal less it


class Window(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One arm under one load, once. Arms that are compared take turns, so `turn` 3 of both is a pair.

    `started_s` and `ended_s` enclose the steady part, after the warm-up. The load is kept up until all `records` have
    ended, which are the requests that overlap with it; `is_warm`: the warm-up ended because two stretches agreed.
    `warm_up_s` is 0 where none was wanted.
    """

    arm: str
    load: Load
    turn: int
    started_s: float
    ended_s: float
    records: tuple[Record, ...]
    lag: Lag
    counts: Counts | None = None  # difference of the server's counters over the window
    warm_up_s: float = 0.0
    is_warm: bool = True
    memory: Memory | None = None  # None: not measurable from outside
    energy_j: float | None = None  # of the GPUs in the steady part, where the driver tells
    void: str = ""  # why nothing may be concluded from it: the client was the bottleneck, the server restarted


class Stamp(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Origin of figures. Each report shows all of it. `simulated` says what is not real; "" if all is."""

    date: str  # ISO 8601, UTC
    command: str
    eyas: str
    commit: str
    client: str  # the machine that measured
    endpoint: dict[str, str] = {}  # arm -> URL, engine, version, model, as far as it says
    hardware: str = ""  # of the server, where it runs here or says it
    simulated: str = ""
