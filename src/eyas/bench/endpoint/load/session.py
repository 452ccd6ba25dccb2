"""A run: every load on every arm, in turns (ABAB), each window kept as soon as it is there."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from eyas.bench.endpoint.load.asking import Asker, CountsOf
from eyas.bench.endpoint.load.here import HereMeter
from eyas.bench.endpoint.load.pace import Limits, Pace
from eyas.bench.endpoint.load.window import Counters, Interrupt, WindowRun
from eyas.bench.endpoint.prompts.prompt import Prompt, in_order, salted, shared_text
from eyas.bench.endpoint.records import Load, Window
from eyas.bench.endpoint.target import Arm, Endpoint

__all__ = ["OUT_OF_TIME", "Acceptance", "Settings", "Side", "Step", "Watcher", "measure", "run_to_end", "steps_of"]

OUT_OF_TIME = "out of time"


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a run. `prompts` names them; the run itself gets the prompts."""

    loads: tuple[Load, ...]
    prompts: tuple[str, ...]
    limits: Limits = Limits()
    turns: int = 7
    shared_words: int = 0  # of a text that all prompts begin with
    seed: int = 0
    timeout_s: float = 600.0  # of one answer
    keeps_text: bool = False

    def shown(self) -> dict[str, Any]:
        """Return them as a file keeps them: two runs with the same can be one."""
        fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return fields


class Acceptance(Protocol):
    """An engine's word on its drafts: counters of the server, and of each request where it says them."""

    def counters(self) -> Counters | None:
        """Return counters for one window; None where the engine has none."""

    @property
    def counts_of(self) -> CountsOf | None:
        """The reader of a request's own counts; None where the engine says none."""


class Side(Struct, frozen=True, kw_only=True):
    """An arm with its endpoint, and what reads the engine's acceptance, if anything does."""

    arm: Arm
    endpoint: Endpoint
    acceptance: Acceptance | None = None


class Step(Struct, frozen=True):
    """A window to be measured."""

    load: Load
    turn: int
    arm: str


class Watcher(Protocol):
    """Shows how a run goes on."""

    def begins(self, step: Step, number: int, total: int) -> None: ...
    def goes(self, pace: Pace) -> None: ...
    def ends(self, window: Window) -> None: ...


def steps_of(settings: Settings, arms: Sequence[str], done: Sequence[Window] = ()) -> list[Step]:
    """Return what is left to measure, in its order: of each load all turns, in each turn all arms.

    A window that is void because the run was cut short is measured again.
    """
    have = {(window.load, window.turn, window.arm) for window in done if not window.void}
    steps = [Step(load, turn, arm) for load in settings.loads for turn in range(settings.turns) for arm in arms]
    return [step for step in steps if (step.load, step.turn, step.arm) not in have]


async def measure(
    sides: Sequence[Side],
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    run: str,
    keep: Callable[[Window], None],
    watcher: Watcher,
    done: Sequence[Window] = (),
    interrupt: Interrupt | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Measure what is left of a run; `keep` gets each window at once. Return why it ended before its end, else "".

    `run` goes into the salts: no other run has the same prompts. Raises UserError where an endpoint takes no request.
    """
    origin_s = clock() - max((window.ended_s for window in done), default=0.0)
    steps = steps_of(settings, [side.arm.name for side in sides], done)
    interrupt = Interrupt() if interrupt is None else interrupt
    async with AsyncExitStack() as stack:
        askers = {}
        for side in sides:
            asker = Asker(
                side.arm,
                side.endpoint,
                now=lambda: clock() - origin_s,
                timeout_s=settings.timeout_s,
                counts_of=None if side.acceptance is None else side.acceptance.counts_of,
                keeps_text=settings.keeps_text,
            )
            stack.push_async_callback(asker.close)
            askers[side.arm.name] = asker
            await asker.try_out(salted(prompts[0], run, side.arm.name, "trial"), settings.loads[0])
        by_name = {side.arm.name: side for side in sides}
        for number, step in enumerate(steps):
            watcher.begins(step, number, len(steps))
            window_run = _window(by_name[step.arm], askers[step.arm], prompts, settings, step, run, interrupt, watcher)
            window = await window_run.run()
            if window is not None:
                watcher.ends(window)
                keep(window)
            if window_run.failure:
                return window_run.failure
    return ""


def _window(
    side: Side,
    asker: Asker,
    prompts: Sequence[Prompt],
    settings: Settings,
    step: Step,
    run: str,
    interrupt: Interrupt,
    watcher: Watcher,
) -> WindowRun:
    """Set up a window. Arms of one turn get the same prompts in the same order, and the same times of arrival."""
    seed = settings.seed + 1000 * step.turn
    order, shared = in_order(prompts, seed), shared_text(settings.shared_words, settings.seed)
    place = settings.loads.index(step.load)

    def prompt_of(number: int) -> Prompt:
        prompt = order[number % len(order)]
        return salted(prompt, run, step.arm, place, step.turn, number, shared=shared)

    return WindowRun(
        asker=asker,
        arm=step.arm,
        load=step.load,
        limits=settings.limits,
        turn=step.turn,
        seed=seed,
        prompt_of=prompt_of,
        interrupt=interrupt,
        counters=None if side.acceptance is None else side.acceptance.counters(),
        here=HereMeter() if side.endpoint.is_here else None,
        on_change=watcher.goes,
    )


def run_to_end(
    sides: Sequence[Side], prompts: Sequence[Prompt], settings: Settings, *, within_s: float = math.inf, **options: Any
) -> str:
    """Run `measure` in a loop of its own, where the first Ctrl-C ends the window and keeps it.

    After `within_s` it ends wherever it is, with OUT_OF_TIME as the reason: the window that runs is dropped.
    """
    import uvloop

    interrupt = Interrupt()

    async def main() -> str:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            interrupt.set()
            loop.remove_signal_handler(signal.SIGINT)  # the second Ctrl-C ends it at once

        with suppress(NotImplementedError, ValueError):  # not in the main thread
            loop.add_signal_handler(signal.SIGINT, stop)
        try:
            async with asyncio.timeout(None if within_s == math.inf else max(within_s, 0.0)) as limit:
                return await measure(sides, prompts, settings, interrupt=interrupt, **options)
        except TimeoutError:
            if not limit.expired():
                raise
            return OUT_OF_TIME

    handler = signal.getsignal(signal.SIGINT)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    finally:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, handler)  # uvloop leaves one behind that does nothing
