"""Ways to decode that are measured in turn, in pairs: the same requests, one arm after the other, repeatedly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import TYPE_CHECKING, Literal, TypeAlias

from eyas.base.errors import UserError
from eyas.base.types import Request, SamplingParams
from eyas.bench.drive import Run, prefill_s, run_requests
from eyas.bench.rounds import Acceptance, count_rounds

if TYPE_CHECKING:
    from eyas.bench.budget import Budget
    from eyas.bench.limit import RoundLimit
    from eyas.engine.core import EngineCore
    from eyas.engine.draft_length import DraftLength, RoundTimer

__all__ = ["Arm", "Drafts", "Workload", "measure"]

Drafts: TypeAlias = int | Literal["auto"]

WARM_UP_ROUNDS = 48  # at each batch size, behind those in which `auto` learns what they cost


@dataclass(kw_only=True, slots=True)
class Arm:
    """One way to decode, and what it did at the batch size at hand."""

    tiles: Literal["plain", "tiled"]
    drafts: Drafts
    core: EngineCore
    draft_length: DraftLength
    timer: RoundTimer | None = None  # of all batch sizes so far
    prefill: list[float] = field(default_factory=list)  # tokens/s, by repeat
    decode: list[float] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)  # seconds of a round, by repeat
    counts: Acceptance = field(default_factory=Acceptance)
    experts: float = 0.0
    answers: list[list[int]] = field(default_factory=list)
    budget: Budget | None = None
    limit: RoundLimit | None = None

    def run(self, requests: Sequence[Request], batch: int, *, to_end: bool) -> Run:
        self.core.draft_length = self.draft_length
        return run_requests(self.core, requests, batch=batch, to_end=to_end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    prompts: Sequence[tuple[int, ...]]
    is_text: bool
    unseen: Iterator[tuple[int, ...]]  # prompts for prefill
    prompt_tokens: int
    params: SamplingParams
    num_answers: int | None = None  # of a run
    ids: Iterator[int] = field(default_factory=itertools.count)

    @property
    def longest_prompt(self) -> int:
        """Those for prefill included."""
        return max(self.prompt_tokens, *map(len, self.prompts))

    @property
    def mean_context(self) -> float:
        """Tokens before the one that is decoded, if all answers are as long as they may be."""
        return mean(map(len, self.prompts)) + (self.params.max_tokens or 0) / 2

    def requests(self, batch: int) -> list[Request]:
        """The same ones each time: two rounds of a batch and at least four, where the workload says nothing else.

        Each has a seed of its own: noise belongs to a position, so equal seeds would draw equal tokens where logits are
        flat, and a batch of random weights would share its experts.
        """
        count = max(4, 2 * batch) if self.num_answers is None else max(batch, self.num_answers)
        chosen = itertools.islice(itertools.cycle(self.prompts), count)
        return [
            Request(request_id=f"bench-{next(self.ids)}", prompt_ids=prompt, params=replace(self.params, seed=seed))
            for seed, prompt in enumerate(chosen)
        ]

    def prefill_requests(self, batch: int) -> list[Request]:
        params = SamplingParams(max_tokens=1)
        chosen = itertools.islice(self.unseen, batch)
        return [Request(request_id=f"bench-{next(self.ids)}", prompt_ids=p, params=params) for p in chosen]


def measure(
    arms: Sequence[Arm],
    work: Workload,
    batch: int,
    repeats: int,
    *,
    prepare: Callable[[int], None] = lambda repeat: None,
    with_budget: bool = False,
) -> None:
    """Fill the arms' figures at one batch size.

    `prepare` is called before each repeat with its number from 0, and before the warm-up with 0.
    """
    from eyas.bench.budget import measure_budget
    from eyas.local import progress_line

    with progress_line() as show:
        prepare(0)
        for arm in arms:
            show(f"batch {batch}: warming up")
            _warm_up(arm, work, batch)
        for repeat in range(repeats):
            show(f"batch {batch}: run {repeat + 1} of {repeats}")
            prepare(repeat)
            # Forwards, then backwards: a machine that slows down slows no arm more than the others.
            for arm in arms if repeat % 2 == 0 else reversed(arms):
                done = arm.run(work.requests(batch), batch, to_end=False)
                arm.decode.append(done.steady_tokens / done.steady_s)
                arm.rounds_s.append(done.steady_s / done.steady_rounds)
                for events in done.events.values():
                    arm.counts.merge(count_rounds(events))
        # Behind all decoding: a GPU that has read a long prompt is hot, and its clock low, for a while.
        for repeat in range(repeats):
            show(f"batch {batch}: prefill {repeat + 1} of {repeats}")
            for arm in (arm for arm in arms if _owns_core(arm, arms)):
                tokens = batch * work.prompt_tokens
                arm.prefill.append(tokens / prefill_s(arm.core, work.prefill_requests(batch)))
        for arm in arms if with_budget else ():
            show(f"batch {batch}: where the time goes")
            arm.core.draft_length = arm.draft_length
            arm.budget = measure_budget(arm.core, lambda: work.requests(batch), batch, median(arm.rounds_s))


def _warm_up(arm: Arm, work: Workload, batch: int) -> None:
    """Untimed: whole answers, to compare, with the experts counted."""
    arm.prefill, arm.decode, arm.rounds_s, arm.counts = [], [], [], Acceptance()
    prefill_s(arm.core, work.prefill_requests(batch))
    arm.core.expert_counts = []
    done = arm.run(work.requests(batch), batch, to_end=True)
    arm.core.expert_counts = None
    if not done.steady_rounds:
        raise UserError(
            f"no round ran with {batch} answers at once; try --ignore-eos, a longer --max-tokens or a smaller --batch"
        )
    arm.experts, arm.answers = mean(done.steady_experts), done.answers
    arm.timer = arm.timer or arm.draft_length.timer(every=arm.core.runner.stages.has_fixed_shapes)
    if arm.timer is not None:
        while not arm.timer.is_done(batch):
            arm.core.draft_length = arm.timer
            run_requests(arm.core, work.requests(batch), batch=batch, to_end=False)
        arm.draft_length.learn(arm.timer.timings)
    num_rounds = done.steady_rounds
    while num_rounds < WARM_UP_ROUNDS:
        num_rounds += arm.run(work.requests(batch), batch, to_end=False).steady_rounds


def _owns_core(arm: Arm, arms: Sequence[Arm]) -> bool:
    """Prefill is a matter of the engine, not of the number of drafts: the first arm of an engine measures it."""
    return next(other for other in arms if other.core is arm.core) is arm
