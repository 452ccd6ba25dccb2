"""Measures arms (ways to decode) in turn, in pairs: the same requests, one arm after the other, repeatedly."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from eyas.base.errors import UserError
from eyas.base.settings.config import MAX_AUTO_DRAFTS
from eyas.base.types import MAX_DRAFTS, Request, SamplingParams
from eyas.bench.engine.drive import Run, prefill_s, run_requests
from eyas.bench.engine.rounds import Acceptance, count_rounds

if TYPE_CHECKING:
    from eyas.base.synthetic import SimulatedAcceptance
    from eyas.bench.engine.budget import Budget
    from eyas.bench.engine.parts import AutoDraftLength, DraftLength, EngineCore, LoadedModel, RoundTimer

__all__ = [
    "Arm",
    "Drafts",
    "RoundLimit",
    "Tiles",
    "Workload",
    "build_arms",
    "forget",
    "measure",
    "parse_drafts",
    "simulate",
]

Drafts: TypeAlias = int | Literal["auto"]
Tiles: TypeAlias = Literal["plain", "whole", "bf16", "tiled"]

WARM_UP_ROUNDS = 48  # at each batch size, after those in which `auto` measures the cost of rounds
EXPERT_ROUNDS = 32  # in which experts are counted, which takes time


class RoundLimit(NamedTuple):
    """Memory-bandwidth bound of a round: bytes read once of weights with the experts used, KV and the head.

    `bandwidth` is that of a streaming read, bytes per second.
    """

    weights: float
    keys_and_values: float
    head: float
    bandwidth: float

    @property
    def num_bytes(self) -> float:
        return self.weights + self.keys_and_values + self.head

    @property
    def seconds(self) -> float:
        return self.num_bytes / self.bandwidth

    def json(self) -> dict[str, float]:
        parts = {name: round(value) for name, value in self._asdict().items()}
        return {**parts, "ms": round(1e3 * self.seconds, 4)}


@dataclass(kw_only=True, slots=True)
class Arm:
    """A way to decode, and its measurements at the current batch size."""

    # F.linear; kernels, with the whole lm_head, without copies in fewer bits, or as the engine chooses
    tiles: Tiles
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

    def run(
        self, requests: Sequence[Request], batch: int, *, to_end: bool = False, max_rounds: int | None = None
    ) -> Run:
        self.core.draft_length = self.draft_length
        return run_requests(self.core, requests, batch=batch, to_end=to_end, max_rounds=max_rounds)


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
        """Length of the longest prompt, those for prefill included."""
        return max(self.prompt_tokens, *map(len, self.prompts))

    @property
    def mean_context(self) -> float:
        """Tokens before the one that is decoded, if all answers are as long as they may be."""
        return mean(map(len, self.prompts)) + (self.params.max_tokens or 0) / 2

    def requests(self, batch: int, turn: int) -> list[Request]:
        """Return twice the batch and at least four requests, unless the workload says otherwise.

        They are the same for the same `turn` and others for the next, as far as there are prompts. Each has its own
        seed: noise belongs to a position, so equal seeds would draw equal tokens where logits are flat, and a batch of
        random weights would share its experts.
        """
        count = max(4, 2 * batch) if self.num_answers is None else max(batch, self.num_answers)
        return [
            Request(
                request_id=f"bench-{next(self.ids)}",
                prompt_ids=self.prompts[number % len(self.prompts)],
                params=replace(self.params, seed=number),
            )
            for number in range(turn * count, (turn + 1) * count)
        ]

    def prefill_requests(self, batch: int) -> list[Request]:
        params = SamplingParams(max_tokens=1)
        chosen = itertools.islice(self.unseen, batch)
        return [Request(request_id=f"bench-{next(self.ids)}", prompt_ids=p, params=params) for p in chosen]


def parse_drafts(text: str) -> Drafts:
    """Parse a number of drafts or `auto` for argparse."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) > MAX_DRAFTS:
        raise argparse.ArgumentTypeError(f"wants numbers from 0 to {MAX_DRAFTS} or 'auto', got '{text}'")
    return int(text)


def build_arms(
    model: LoadedModel,
    drafts: Sequence[Drafts],
    *,
    acceptances: Sequence[SimulatedAcceptance] | None,
    **options: Any,
) -> list[Arm]:
    """Build the arms: one without a drafter first, the others in the order given, which share an engine.

    Raises UserError for an acceptance that cannot be simulated.
    """
    from eyas.bench.engine.parts import FixedDraftLength, auto_draft_length, capture

    drafting = [number for number in drafts if number != 0] if model.options.drafter != "none" else []
    without = model.build(drafter="none", **options).core
    capture(without)
    arms = [Arm(tiles="tiled", drafts=0, core=without, draft_length=FixedDraftLength(0))]
    if acceptances:
        if not drafting:
            raise UserError("--simulate-acceptance needs drafts; add --draft eagle3, and --drafts with more than 0")
        chances = [wanted.chances(_most_drafts(drafting)) for wanted in acceptances]
        options["simulated_acceptance"] = chances[0]
    if drafting:
        most = max(MAX_AUTO_DRAFTS if number == "auto" else number for number in drafting)
        core = model.build(draft_tokens=most, **options).core
        capture(core, range(most + 1) if "auto" in drafting else [int(number) for number in drafting])
        for number in drafting:
            length = (
                FixedDraftLength(number)
                if number != "auto"
                else auto_draft_length(model.options, model.config, model.weights, core.scheduler.config.max_rows)
            )
            arms.append(Arm(tiles="tiled", drafts=number, core=core, draft_length=length))
    return arms


def forget(arms: Sequence[Arm]) -> None:
    """Reset `auto` between settings: it keeps the cost of rounds and forgets acceptance."""
    from eyas.bench.engine.parts import AutoDraftLength

    for arm in arms:
        if isinstance(arm.draft_length, AutoDraftLength):
            arm.draft_length = arm.draft_length.fresh()


def simulate(arms: Sequence[Arm], acceptance: SimulatedAcceptance | None, turn: int) -> None:
    """Set synthetic acceptance: the same accepted drafts for all arms of a turn, others in the next."""
    if acceptance is None:
        return
    from eyas.bench.engine.parts import SimulatedSampler

    chances = acceptance.chances(_most_drafts([arm.drafts for arm in arms]))
    for core in {id(arm.core): arm.core for arm in arms}.values():  # arms with drafts share one
        if isinstance(core.runner.sampler, SimulatedSampler):
            core.runner.sampler.simulate(chances, seed=turn)


def _most_drafts(drafts: Sequence[Drafts]) -> int:
    """Return the draft length that an acceptance length refers to: the most that `auto` may take if alone."""
    numbers = [number for number in drafts if isinstance(number, int)]
    return max(numbers, default=0) or MAX_AUTO_DRAFTS


def measure(
    arms: Sequence[Arm],
    work: Workload,
    batch: int,
    repeats: int,
    *,
    prepare: Callable[[int], None] = lambda turn: None,
    with_budget: bool = False,
) -> None:
    """Fill the arms' figures at one batch size.

    Turn 0 is the warm-up, then comes a turn for each repeat; `prepare` is called before each with its number.
    """
    from eyas.bench.engine.budget import measure_budget
    from eyas.local import progress_line

    with progress_line() as show:
        prepare(0)
        for arm in arms:
            show(f"batch {batch}: warming up")
            _warm_up(arm, work, batch)
        for turn in range(1, repeats + 1):
            show(f"batch {batch}: run {turn} of {repeats}")
            prepare(turn)
            # Forwards, then backwards: a machine that slows down slows no arm more than the others.
            for arm in arms if turn % 2 else reversed(arms):
                done = arm.run(work.requests(batch, turn), batch)
                arm.decode.append(done.steady_tokens / done.steady_s)
                arm.rounds_s.append(done.steady_s / done.steady_rounds)
                for events in done.events.values():
                    arm.counts.merge(count_rounds(events))
        # After all decoding: a GPU that has read a long prompt is hot, and its clock low, for a while.
        for repeat in range(repeats):
            show(f"batch {batch}: prefill {repeat + 1} of {repeats}")
            for arm in (arm for arm in arms if _owns_core(arm, arms)):
                tokens = batch * work.prompt_tokens
                arm.prefill.append(tokens / prefill_s(arm.core, work.prefill_requests(batch)))
        for arm in arms if with_budget else ():
            show(f"batch {batch}: where the time goes")
            arm.core.draft_length = arm.draft_length
            arm.budget = measure_budget(arm.core, lambda: work.requests(batch, 1), batch, median(arm.rounds_s))


def _warm_up(arm: Arm, work: Workload, batch: int) -> None:
    """Run untimed: whole answers to compare, rounds that `auto` measures, and rounds whose experts are counted."""
    from eyas.bench.engine.parts import AutoDraftLength

    arm.prefill, arm.decode, arm.rounds_s, arm.counts = [], [], [], Acceptance()
    prefill_s(arm.core, work.prefill_requests(batch))
    done = arm.run(work.requests(batch, 0), batch, to_end=True)
    arm.answers, num_rounds = done.answers, done.steady_rounds
    if not num_rounds:
        raise UserError(
            f"no round ran with {batch} answers at once; try --ignore-eos, a longer --max-tokens or a smaller --batch"
        )
    if isinstance(arm.draft_length, AutoDraftLength):
        _time_rounds(arm, arm.draft_length, work, batch)
    while num_rounds < WARM_UP_ROUNDS:
        num_rounds += arm.run(work.requests(batch, 0), batch).steady_rounds
    arm.core.expert_counts = []
    arm.experts = mean(arm.run(work.requests(batch, 0), batch, max_rounds=EXPERT_ROUNDS).steady_experts)
    arm.core.expert_counts = None


def _time_rounds(arm: Arm, auto: AutoDraftLength, work: Workload, batch: int) -> None:
    """Time rounds as a server does when it starts."""
    arm.timer = arm.timer or auto.timer(every=arm.core.runner.stages.has_fixed_shapes)
    if arm.timer is None:
        return
    while not arm.timer.is_done(batch):
        arm.core.draft_length = arm.timer
        run_requests(arm.core, work.requests(batch, 0), batch=batch, to_end=False)
    auto.learn(arm.timer.timings)


def _owns_core(arm: Arm, arms: Sequence[Arm]) -> bool:
    """Whether this is the first arm of its engine, which measures prefill: that does not depend on drafts."""
    return next(other for other in arms if other.core is arm.core) is arm
