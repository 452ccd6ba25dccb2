"""Closed-loop load at fixed concurrency; records when each token arrives."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from eyas.base.errors import UserError
from eyas.base.types import Request, SamplingParams, TokenEvent

if TYPE_CHECKING:
    from eyas.bench.engine.parts import EngineCore

__all__ = ["JITTER_ROUNDS", "Answer", "Jitter", "Loop", "random_requests", "run_closed_loop", "run_jitter"]

QUIET_ROUNDS = 100  # timed before a long prompt comes
WARM_ROUNDS = 20
JITTER_ROUNDS = 1 + WARM_ROUNDS + QUIET_ROUNDS  # of each answer, before it comes


@dataclass(slots=True)
class Answer:
    """Times of one answer: when its request was submitted, and when how many tokens arrived; seconds of one clock."""

    start: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    @property
    def first_s(self) -> float:
        return self.arrivals[0][0] - self.start

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.arrivals)

    @property
    def token_s(self) -> float | None:
        """Mean inter-token latency, the first token excluded; None without further tokens."""
        later = self.num_tokens - self.arrivals[0][1]
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / later if later else None

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.arrivals)]


@dataclass(frozen=True, slots=True)
class Loop:
    """The measured answers, and the throughput of all answers while those ran."""

    answers: list[Answer]
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Jitter:
    """Gaps between deliveries without and with a long prompt in prefill, and that prompt's time to first token."""

    quiet_s: list[float]
    mixed_s: list[float]
    first_s: float


def random_requests(vocab_size: int, *, num_tokens: int, params: SamplingParams, name: str) -> Iterator[Request]:
    """Yield requests without end, each with its own prompt and seed: equal ones would share cached pages or experts."""
    for number in itertools.count():
        rng = random.Random(f"{name} {number}")
        yield Request(
            request_id=f"{name}-{number}",
            prompt_ids=tuple(rng.randrange(vocab_size) for _ in range(num_tokens)),
            params=replace(params, seed=number),
        )


class _Clients:
    """Hands requests to an engine and notes when their tokens come."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.running: dict[str, Answer] = {}

    def add(self, request: Request) -> Answer:
        answer = self.running[request.request_id] = Answer(time.perf_counter())
        self.core.add(request, self._take)
        return answer

    def _take(self, event: TokenEvent) -> None:
        if event.token_ids:
            self.running[event.request_id].arrivals.append((time.perf_counter(), len(event.token_ids)))
        if event.finish is not None:
            del self.running[event.request_id]

    def stop(self) -> None:
        """Cancel what runs."""
        for request_id in list(self.running):
            self.core.cancel(request_id)
        while not self.core.is_idle:
            self.core.step()


def run_closed_loop(core: EngineCore, requests: Iterator[Request], *, concurrency: int, num_measured: int) -> Loop:
    """Keep `concurrency` answers running until the measured ones have ended.

    Nothing is measured until the first answer of each client has ended. Their lengths differ, so that prompts come one
    by one afterwards.
    """
    clients, everything = _Clients(core), list[Answer]()
    for share, request in enumerate(itertools.islice(requests, concurrency), 1):
        assert request.params.max_tokens is not None
        length = max(1, request.params.max_tokens * share // concurrency)
        everything.append(clients.add(replace(request, params=replace(request.params, max_tokens=length))))
    firsts, measured = list(clients.running), list[Answer]()
    while len(measured) < num_measured or any(answer in measured for answer in clients.running.values()):
        core.step()
        is_steady = clients.running.keys().isdisjoint(firsts)
        while len(clients.running) < concurrency:
            everything.append(clients.add(next(requests)))
            if is_steady and len(measured) < num_measured:
                measured.append(everything[-1])
    start, end = measured[0].start, max(answer.arrivals[-1][0] for answer in measured)
    clients.stop()
    num_tokens = sum(count for answer in everything for now, count in answer.arrivals if start < now <= end)
    return Loop(measured, num_tokens / (end - start))


def run_jitter(core: EngineCore, requests: Iterator[Request], long: Request, *, concurrency: int) -> Jitter:
    """Let `concurrency` answers run, then add `long`; cancel all when its first token arrives.

    Raises UserError if an answer ends before that.
    """
    clients = _Clients(core)
    requests = itertools.islice(requests, concurrency)
    answers = {request.request_id: clients.add(request) for request in requests}

    def step() -> None:
        core.step()
        if not answers.keys() <= clients.running.keys():
            clients.stop()
            raise UserError("an answer ended before the long prompt was read; ask for a longer --context")

    while min(len(answer.arrivals) for answer in answers.values()) < JITTER_ROUNDS:
        step()
    newcomer = clients.add(long)
    while not newcomer.arrivals:
        step()
    clients.stop()
    quiet, mixed = list[float](), list[float]()
    for answer in answers.values():
        known = [now for now, _ in answer.arrivals]
        for earlier, later in list(pairwise(known))[WARM_ROUNDS:]:
            if later <= newcomer.start:
                quiet.append(later - earlier)
            elif earlier < newcomer.arrivals[0][0]:
                mixed.append(later - earlier)
    return Jitter(quiet, mixed, newcomer.first_s)
