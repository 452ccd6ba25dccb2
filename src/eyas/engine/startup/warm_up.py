"""Warms up an engine before its first request: runs everything once and times rounds.

No request then waits for compilation, allocation or graph capture, and the choice of draft lengths starts with measured
costs.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.choice import AutoDraftLength, RoundTimer
from eyas.engine.round.stages import buckets

if TYPE_CHECKING:
    from eyas.engine.step.core import EngineCore

__all__ = ["warm_up"]

LIMIT_S = 3.0
CAPTURE_LIMIT_S = 10.0  # with graphs, which are captured for each draft length


def warm_up(core: EngineCore, seconds: float | None = None) -> None:
    """Run a new engine for at most about `seconds` after all compilation, then reset its counters and reports."""
    captures = core.runner.stages.has_fixed_shapes
    if captures:
        _read_prompts(core)
    _run_rounds(core, 1, None, 0.0)
    end = time.perf_counter() + ((CAPTURE_LIMIT_S if captures else LIMIT_S) if seconds is None else seconds)
    chosen, timer = core.draft_length, None
    if isinstance(chosen, AutoDraftLength):
        timer = chosen.timer(every=captures)
    elif captures:
        number = (core.scheduler.config.max_drafts,)
        timer = RoundTimer(number, number)
    if timer is not None:
        core.draft_length = timer
        for size in buckets(core.scheduler.config.num_slots):
            if time.perf_counter() < end:
                _run_rounds(core, size, timer, end)
        core.draft_length = chosen
        if isinstance(chosen, AutoDraftLength):
            chosen.learn(timer.timings)
    core.reset_counters()


def _read_prompts(core: EngineCore) -> None:
    """Prefill prompts of 64, 128, ... tokens: kernels differ with the number of rows."""
    num_tokens, most = 64, min(core.scheduler.config.chunk_tokens, core.context - 1)
    while num_tokens <= most and core.scheduler.fits(num_tokens + 1):
        _add(core, num_tokens, SamplingParams(max_tokens=1))
        while not core.is_idle:
            core.step()
        num_tokens *= 2


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
