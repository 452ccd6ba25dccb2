"""Drives an engine's step loop from a benchmark: requests in, events and times out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eyas.base.types import Request, TokenEvent

if TYPE_CHECKING:
    from eyas.bench.engine.parts import EngineCore

__all__ = ["Run", "prefill_s", "run_requests"]


@dataclass(slots=True)
class Run:
    """Events by request, in order of the requests; and the steady part, which is what decode speed is taken from.

    Steady are the rounds in which the whole batch was decoding and no prompt was being read.
    """

    events: dict[str, list[TokenEvent]]
    steady_s: float = 0.0
    steady_tokens: int = 0
    steady_rounds: int = 0
    steady_experts: list[int] = field(
        default_factory=list
    )  # distinct ones, by round and layer, if the core tracks them

    @property
    def answers(self) -> list[list[int]]:
        return [[token for event in events for token in event.token_ids] for events in self.events.values()]


def run_requests(
    core: EngineCore,
    requests: Sequence[Request],
    *,
    batch: int,
    to_end: bool = True,
    max_rounds: int | None = None,
    on_finish: Callable[[], None] = lambda: None,
) -> Run:
    """Keep `batch` requests running. Without `to_end`, cancel the rest when too few are left for a batch.

    Remaining requests are also cancelled after `max_rounds` steady rounds.
    """
    run = Run({request.request_id: [] for request in requests})
    waiting = deque(requests)
    reading: set[str] = set()  # no token yet
    decoding: set[str] = set()
    num_tokens = 0

    def deliver(event: TokenEvent) -> None:
        nonlocal num_tokens
        run.events[event.request_id].append(event)
        num_tokens += len(event.token_ids)
        reading.discard(event.request_id)
        decoding.add(event.request_id)
        if event.finish is not None:
            decoding.discard(event.request_id)
            on_finish()

    while waiting or not core.is_idle:
        while waiting and len(reading) + len(decoding) < batch:
            request = waiting.popleft()
            reading.add(request.request_id)
            core.add(request, deliver)
        is_full = len(reading) + len(decoding) == batch
        if not (is_full or to_end) or (max_rounds is not None and run.steady_rounds >= max_rounds):
            waiting.clear()
            for request_id in decoding | reading:
                core.cancel(request_id)
        is_steady = is_full and not reading
        before, tracked, start = num_tokens, len(core.expert_counts or ()), time.perf_counter()
        core.step()
        if is_steady:
            run.steady_s += time.perf_counter() - start
            run.steady_tokens += num_tokens - before
            run.steady_rounds += 1
            run.steady_experts += (core.expert_counts or [])[tracked:]
    return run


def prefill_s(core: EngineCore, requests: Sequence[Request]) -> float:
    """Return the time to first token of requests for one token. Their prompts must be new to the prefix cache."""
    events: list[TokenEvent] = []
    start = time.perf_counter()
    for request in requests:
        core.add(request, events.append)
    while len(events) < len(requests):
        core.step()
    seconds = time.perf_counter() - start
    while not core.is_idle:  # rounds that were launched before their end was known
        core.step()
    assert not any(event.num_cached for event in events)
    return seconds
