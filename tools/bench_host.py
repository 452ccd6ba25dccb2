"""Measures what the host computes for a step: planning, reading results, delivering tokens, choosing drafts.

    python -m tools.bench_host [sequences, 32 and 512 if none are given]

The device is SIMULATED: its results are drawn at random and its clock is that of `tools/drafting/machines.py`. Its
work, launches and copies are left out of the milliseconds. An eighth of the answers repeats itself, to be looked up.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import time
from statistics import median
from typing import cast

import numpy as np
import torch
from tools.drafting.machines import H200, Machine
from tools.drafting.simulate import auto

from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.choice import AutoDraftLength, DraftLength, FixedDraftLength
from eyas.engine.draft_length.confidence import NUM_LEVELS
from eyas.engine.round.stages import Stages, buckets
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import RoundOutput
from eyas.engine.sequences.constraint import GrammarCache
from eyas.engine.sequences.sequence import Sequence
from eyas.engine.startup.garbage import collect_seldom
from eyas.engine.step import core as core_module
from eyas.engine.step.core import EngineCore
from eyas.engine.step.runner import FirstTokens, Runner, StepOutput
from eyas.engine.step.scheduler import Scheduler, SchedulerConfig, StepPlan
from eyas.kernels.cuda.moe.moe import MAX_ROWS

VOCAB, CONTEXT, PROMPT, PAGE = 201_088, 4_096, 128, 16
MAX_DRAFTS = 7
CYCLE, EVERY = 60, 8  # every eighth answer repeats its 60 tokens
WARM_UP, STEPS = 100, 200


class SimulatedRunner:
    """Draws the results of steps, of `chance` acceptance, and knows how long a device would have taken."""

    lookup_sizes = range(5, 4, -1)

    def __init__(self, num_slots: int, machine: Machine, chance: float) -> None:
        self.state = DeviceState(
            num_slots=num_slots,
            max_positions=CONTEXT,
            page_size=PAGE,
            vocab_size=VOCAB,
            tap_width=0,
            tap_ring=1,
            tap_dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.stages = Stages()
        self.own_s = 0.0  # what drawing took, which is not the engine's
        self.device_s = 0.0  # of the last step
        self._machine, self._chance = machine, chance
        self._rng = np.random.default_rng(0)

    def run(self, plan: StepPlan, *, keeps_routing: bool) -> StepOutput:
        drafts = plan.drafts
        if drafts.num_drafts:
            self.state.limit_drafts(drafts.limits, drafts.by_lookup)
            self.state.cut_drafts(drafts.cut)
        began = time.perf_counter()
        last = [chunk.sequence for chunk in plan.chunks if chunk.is_last]
        first = FirstTokens(last, self._draw(last, StepPlan())) if last else None
        output = StepOutput(self._draw(plan.decode, plan) if plan.decode else None, first)
        rows = len(plan.decode) + sum(drafts.limits.get(s.slot, 0) for s in plan.decode if s.slot is not None)
        self.device_s = self._machine.seconds(max(1, len(plan.decode)), max(1, rows), drafts.head_drafts)
        self.own_s += time.perf_counter() - began
        return output

    def _draw(self, sequences: list[Sequence], plan: StepPlan) -> RoundOutput:
        rng, size, most = self._rng, len(sequences), plan.drafts.num_drafts
        asked_S = np.array([plan.drafts.limits.get(cast(int, s.slot), 0) for s in sequences])
        right_SK = rng.random((size, most)) < self._chance
        accepted_S = np.minimum(np.logical_and.accumulate(right_SK, axis=1).sum(1), asked_S)
        tokens_SR = rng.integers(0, VOCAB, (size, most + 1))
        for row in range(0, size, EVERY):
            tokens_SR[row] = (sequences[row].known_length + np.arange(most + 1)) % CYCLE
        levels_SN = None
        if plan.drafts.head_drafts:
            levels = np.where(right_SK, rng.integers(3, NUM_LEVELS, right_SK.shape), rng.integers(0, 6, right_SK.shape))
            levels_SN = torch.from_numpy(levels[:, : plan.drafts.head_drafts])
        zeros = torch.zeros(size, dtype=torch.int64)
        return RoundOutput(
            sampled_SR=torch.from_numpy(tokens_SR),
            num_committed_S=torch.from_numpy(accepted_S + 1),
            num_accepted_S=torch.from_numpy(accepted_S),
            stopped_S=zeros.bool(),
            ended_S=zeros.bool(),
            failed_S=zeros,
            draft_SK=torch.from_numpy(tokens_SR[:, :most]),
            num_drafts_S=torch.from_numpy(asked_S),
            logprobs=None,
            router_logits=(),
            live_T=zeros.bool(),
            levels_SN=levels_SN,
        )


def engine(num_sequences: int, draft_length: DraftLength, *, max_drafts: int, chance: float = 0.7) -> EngineCore:
    """Return an engine with `num_sequences` answers under way."""
    pages = num_sequences * CONTEXT // PAGE
    config = SchedulerConfig(
        page_size=PAGE,
        num_full_pages=pages,
        num_sliding_pages=pages,
        window=128,
        num_slots=num_sequences,
        chunk_tokens=8192,
        busy_chunk_tokens=2048,
        max_drafts=max_drafts,
        max_rows=MAX_ROWS,
    )
    runner = SimulatedRunner(num_sequences, H200, chance)
    core = EngineCore(
        cast(Runner, runner),
        Scheduler(config),
        draft_length,
        cast(GrammarCache, None),
        context=CONTEXT,
        eos_ids=(),
        lag=1,
    )
    rng = random.Random(0)
    for number in range(num_sequences):
        prompt = tuple(rng.randrange(VOCAB) for _ in range(PROMPT))
        params = SamplingParams(ignore_eos=True, seed=number)
        core.add(Request(request_id=str(number), prompt_ids=prompt, params=params), lambda event: None)
    return core


def milliseconds(core: EngineCore, profile: cProfile.Profile | None = None) -> list[float]:
    """Return the host time of steps in which all sequences decode."""
    runner = cast(SimulatedRunner, core.runner)

    found: list[float] = []
    with_clock = core_module.Stopwatch
    core_module.Stopwatch = lambda device: _Clock(runner)  # type: ignore[misc, assignment]
    try:
        while len(core.scheduler.running) < core.scheduler.config.num_slots or any(
            s.num_prefilled < s.prompt_length for s in core.scheduler.running
        ):
            core.step()
        for number in range(WARM_UP + STEPS):
            if number == 0:
                collect_seldom()
            if profile is not None and number == WARM_UP:
                profile.enable()
            before, began = runner.own_s, time.perf_counter()
            core.step()
            found.append(1e3 * (time.perf_counter() - began - (runner.own_s - before)))
    finally:
        core_module.Stopwatch = with_clock  # type: ignore[misc]
        if profile is not None:
            profile.disable()
    return found[WARM_UP:]


class _Clock:
    """The simulated device's time of one step, in place of a stopwatch."""

    def __init__(self, runner: SimulatedRunner) -> None:
        self._runner, self._seconds = runner, 0.0

    def stop(self) -> None:
        self._seconds = self._runner.device_s

    def seconds(self) -> float:
        return self._seconds


def policies(num_sequences: int) -> dict[str, DraftLength]:
    learned = auto(H200, MAX_DRAFTS, tuple(buckets(num_sequences)), has_lookup=True, max_rows=MAX_ROWS)
    return {"none": FixedDraftLength(0), "3": FixedDraftLength(3), "auto": cast(AutoDraftLength, learned)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sequences", type=int, nargs="*", default=[32, 512])
    parser.add_argument("--profile", metavar="DRAFTS", help="where the time of none, 3 or auto goes, by function")
    args = parser.parse_args()
    for size in args.sequences:
        for name, policy in policies(size).items():
            if args.profile not in (None, name):
                continue
            profile = cProfile.Profile() if args.profile else None
            times = sorted(milliseconds(engine(size, policy, max_drafts=MAX_DRAFTS), profile))
            print(
                f"{size} sequences, {name} drafts: {median(times):.2f} ms a step on the host "
                f"(p10 {times[len(times) // 10]:.2f}, p90 {times[-len(times) // 10]:.2f})",
                flush=True,
            )
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
