"""Warms up an engine before its first request: runs everything once and times rounds.

No request then waits for compilation, allocation or graph capture, and the choice of draft lengths starts with measured
costs.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.choice import AutoDraftLength, RoundTimer
from eyas.engine.draft_length.round_limit import most_drafts
from eyas.engine.round.stages import buckets

if TYPE_CHECKING:
    from eyas.engine.step.core import EngineCore

__all__ = ["capture", "warm_up"]

LIMIT_S = 3.0


def warm_up(core: EngineCore, seconds: float | None = None) -> None:
    """Run a new engine for about `seconds` after all compilation, then reset its counters and reports.

    With graphs it takes as long as it takes to capture all of them: none is captured beside answers.
    """
    captures, chosen = core.runner.stages.has_fixed_shapes, core.draft_length
    capture(core)
    _run_rounds(core, 1, None, 0.0)
    end = math.inf if captures else time.perf_counter() + (LIMIT_S if seconds is None else seconds)
    if isinstance(chosen, AutoDraftLength) and (timer := chosen.timer(every=captures)) is not None:
        core.draft_length = timer
        for size in buckets(core.scheduler.config.num_slots):
            if time.perf_counter() < end:
                _run_rounds(core, size, timer, end)
        core.draft_length = chosen
        chosen.learn(timer.timings)
    core.reset_counters()


def capture(core: EngineCore, numbers: Collection[int] | None = None) -> None:
    """Run once, where stages are captured, all that requests can come to.

    `numbers` of drafts are those of rounds, by default those that the engine's policy comes to.
    """
    if not core.runner.stages.has_fixed_shapes:
        return
    config = core.scheduler.config
    if numbers is None:
        is_auto = isinstance(core.draft_length, AutoDraftLength)
        numbers = range(config.max_drafts + 1) if is_auto else (config.max_drafts,)

    def numbers_of(size: int) -> Sequence[int]:
        most = most_drafts(size, config.max_drafts, config.max_rows)
        return sorted({0, *(min(number, most) for number in numbers)})  # 0 where the masks of all are slow

    core.runner.capture(numbers_of)


def _run_rounds(core: EngineCore, num_sequences: int, timer: RoundTimer | None, end: float) -> None:
    """Run rounds until one was read, and until the timer is done or `end` is reached."""
    before, num_tokens = core.stats().num_rounds, min(64, core.context - 1)
    budget = max(1, min(256, core.context - num_tokens))
    names = [
        _add(core, num_tokens, SamplingParams(ignore_eos=True, seed=number, max_tokens=budget))
        for number in range(num_sequences)
    ]
    while not core.is_idle:
        core.step()
        seen = core.stats().num_rounds > before + core.lag
        if seen and (timer is None or timer.is_done(num_sequences) or time.perf_counter() > end):
            for name in names:
                core.cancel(name)


def _add(core: EngineCore, num_tokens: int, params: SamplingParams) -> str:
    """Queue a request with a prompt of `num_tokens`, and return its id, which differs with the seed."""
    rng, size = random.Random(num_tokens), core.runner.state.vocab_size
    prompt = tuple(rng.randrange(size) for _ in range(num_tokens))
    name = f"warm-up-{params.seed}"
    core.add(Request(request_id=name, prompt_ids=prompt, params=params), lambda event: None)
    return name
