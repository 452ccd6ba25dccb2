"""Runs one window: the load of `pace.py` on one arm, by the event loop's clock."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from msgspec.structs import replace

from eyas.bench.endpoint.figures import end_to_end_s, first_text_s
from eyas.bench.endpoint.load.asking import Asker
from eyas.bench.endpoint.load.here import HereMeter
from eyas.bench.endpoint.load.lag import LagMeter, bottleneck
from eyas.bench.endpoint.load.pace import Limits, Pace, Ticket
from eyas.bench.endpoint.prompts.prompt import Prompt
from eyas.bench.endpoint.records import Counts, Load, Record, Window

__all__ = ["INTERRUPTED", "Counters", "Interrupt", "WindowRun"]

INTERRUPTED = "interrupted"


class Counters(Protocol):
    """Counters of a server, read when the steady part begins and when it ends."""

    async def begin(self) -> None:
        """Read them at the beginning."""

    async def end(self) -> tuple[Counts | None, str]:
        """Read them again; return the difference, and why the window says nothing, if the server restarted."""


class Interrupt:
    """Asks a run to end soon, with what it has."""

    def __init__(self) -> None:
        self.is_set = False
        self.wake: Callable[[], None] = lambda: None

    def set(self) -> None:
        """Ask for it."""
        self.is_set = True
        self.wake()


@dataclass(kw_only=True)
class WindowRun:
    """One window, to be run once. `prompt_of` gives the prompt of a request by its number."""

    asker: Asker
    arm: str
    load: Load
    limits: Limits
    turn: int
    seed: int
    prompt_of: Callable[[int], Prompt]
    interrupt: Interrupt
    counters: Counters | None = None
    here: HereMeter | None = None
    on_change: Callable[[Pace], None] = lambda pace: None
    _records: list[Record] = field(default_factory=list)
    _late_s: list[float] = field(default_factory=list)  # of measured requests, behind their schedule
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _broken: BaseException | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> Window | None:
        """Return the window, void where nothing may be concluded from it; None if it ended in its warm-up."""
        self._lag = LagMeter()
        self.interrupt.wake = self._wake.set
        counts, why = None, ""
        gc.collect()
        gc.freeze()  # what is there already is not looked through while times are taken
        if self.here is not None:
            await self.here.start()
        start_s = self.asker.now()
        self._pace = Pace(self.load, self.limits, start_s=start_s, seed=self.seed)
        try:
            await self._drive(self._pace)
            if self.counters is not None and self._pace.phase != "warm-up":
                counts, why = await self._ended
        finally:
            self._lag.stop()
            if self.here is not None:
                await self.here.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            gc.unfreeze()
        return None if self._pace.phase == "warm-up" else self._window(self._pace, start_s, counts, why)

    @property
    def failure(self) -> str:
        """Reason for which it ended before its time; "" if it did not."""
        return self._pace.failure

    async def _drive(self, pace: Pace) -> None:
        loop = asyncio.get_running_loop()
        phase = pace.phase
        while not pace.is_over:
            if self.interrupt.is_set:
                pace.stop(self.asker.now(), INTERRUPTED)
                break
            self._wake.clear()
            for ticket in pace.due(self.asker.now()):
                task = asyncio.create_task(self._one(pace, ticket))
                self._tasks.add(task)
                task.add_done_callback(self._finish_one)
            while phase != pace.phase:  # a steady part may be over as soon as it has begun
                phase = "steady" if phase == "warm-up" else pace.phase
                await self._enter(phase)
            self.on_change(pace)
            if pace.is_over:
                break
            now = self.asker.now()
            next_s = pace.next_s(now)
            timer = None if next_s == math.inf else loop.call_later(max(0.0, next_s - now), self._wake.set)
            await self._wake.wait()
            if self._broken is not None:
                raise self._broken
            if timer is not None:
                timer.cancel()
        if phase == "steady":
            await self._enter("run-out")

    async def _enter(self, phase: str) -> None:
        """Begin or end what is measured beside the requests; both go on meanwhile."""
        if phase == "steady":
            self._lag.start()
            if self.here is not None:
                self.here.mark()
            if self.counters is not None:
                self._begun = asyncio.create_task(self.counters.begin())
        else:
            self._lag.stop()
            if self.here is not None:
                await self.here.stop()
            if self.counters is not None:
                self._ended = asyncio.create_task(self._finish(self.counters))

    def _finish_one(self, task: asyncio.Task[None]) -> None:
        """Forget a request's task; what it cannot have raised ends the run."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self._wake.set()

    async def _finish(self, counters: Counters) -> tuple[Counts | None, str]:
        await self._begun
        return await counters.end()

    async def _one(self, pace: Pace, ticket: Ticket) -> None:
        prompt, begun_s = self.prompt_of(ticket.number), self.asker.now()
        if ticket.is_measured:
            self._late_s.append(begun_s - ticket.scheduled_s)
        if self.load.rate is None:
            ticket = replace(ticket, scheduled_s=begun_s)
        record, why = await self.asker.ask(prompt, self.load, ticket, pace.chunk)
        self._records.append(record)
        pace.ended(ticket, self.asker.now(), has_failed=record.error is not None, why=why)
        self._wake.set()

    def _window(self, pace: Pace, start_s: float, counts: Counts | None, why: str) -> Window:
        records = [
            record
            for record in self._records
            if record.is_measured or (record.ended_s >= pace.started_s and record.scheduled_s < pace.ended_s)
        ]
        records.sort(key=lambda record: record.scheduled_s)
        measured = [record for record in records if record.is_measured]
        lag = self._lag.lag(self._late_s)
        whole = [record for record in measured if record.error is None and record.chunks]
        first_s, answer_s = (_median(measure(record) for record in whole) for measure in (first_text_s, end_to_end_s))
        memory, joules = (None, None) if self.here is None else self.here.found()
        return Window(
            arm=self.arm,
            load=self.load,
            turn=self.turn,
            started_s=pace.started_s,
            ended_s=pace.ended_s if math.isfinite(pace.ended_s) else self.asker.now(),
            records=tuple(records),
            lag=lag,
            counts=counts,
            warm_up_s=pace.started_s - start_s if self.limits.warm_up_s else 0.0,
            is_warm=pace.is_warm,
            memory=memory,
            energy_j=joules,
            void=pace.failure or why or bottleneck(lag, first_s, answer_s, is_open=self.load.rate is not None),
        )


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0
