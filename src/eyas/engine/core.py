"""The step loop: requests in, plans run, results read `lag` steps behind, token events out. One thread, no queue.

Knows sequences and plans; tensors are the runner's, threads are `engine.engine`'s.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.base.errors import InvalidRequest
from eyas.base.ports import Deliver
from eyas.base.types import (
    EngineStats,
    FinishReason,
    Request,
    RoundTrace,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
)
from eyas.engine.draft_length import DraftLength
from eyas.engine.pages import page_keys
from eyas.engine.runner import Runner
from eyas.engine.scheduler import Scheduler, StepPlan
from eyas.engine.sequence import Phase, Sequence
from eyas.engine.speculate import RoundOutput

__all__ = ["EngineCore"]

log = logging.getLogger(__name__)


class _HostRound(NamedTuple):
    """A round's results in host memory; valid once `event` has passed."""

    packed: Tensor  # int64 [S, ...]: committed, accepted, stopped, ended, drafts, then tokens, then draft ids
    logprobs: tuple[Tensor, Tensor, Tensor] | None
    num_rows: int
    event: torch.cuda.Event | None


@dataclass(slots=True)
class _Launched:
    """A step on its way: what was planned, and where its results will be."""

    plan: StepPlan
    rounds: list[tuple[list[Sequence], int, _HostRound]]  # sequences, tokens reserved for each, results
    watch: _Stopwatch


class _Stopwatch:
    """Times one step on the device that runs it, whatever the host does meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            self._events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            self._events[0].record()
        self._seconds = -time.perf_counter()

    def stop(self) -> None:
        self._seconds += time.perf_counter()
        if self._events is not None:
            self._events[1].record()

    def seconds(self) -> float:
        """Valid once the step's results have been read."""
        if self._events is None:
            return self._seconds
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1e3


def _to_host(output: RoundOutput) -> _HostRound:
    columns = (output.num_committed_S, output.num_accepted_S, output.stopped_S, output.ended_S, output.num_drafts_S)
    packed = torch.cat((torch.stack([c.long() for c in columns], 1), output.sampled_SR, output.draft_SK), dim=1)
    tensors = (packed, *(output.logprobs or ()))
    event = None
    if packed.is_cuda:
        copies = tuple(torch.empty_like(t, device="cpu", pin_memory=True) for t in tensors)
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        tensors = copies
    logprobs = (tensors[1], tensors[2], tensors[3]) if output.logprobs is not None else None
    return _HostRound(tensors[0], logprobs, output.sampled_SR.shape[1], event)


class EngineCore:
    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        draft_length: DraftLength,
        *,
        context: int,
        eos_ids: tuple[int, ...],
        seed: int | None = None,
        lag: int = 0,
        track_experts: bool = False,
    ) -> None:
        """`lag` steps are under way before the first result is read: 1 keeps a GPU busy, 0 suits a CPU."""
        self.runner = runner
        self.scheduler = scheduler
        self.draft_length = draft_length
        self.context = context
        self.eos_ids = eos_ids
        self.lag = lag
        self.expert_counts: list[int] | None = [] if track_experts else None
        self._seeds = random.Random(seed)
        self._launched: deque[_Launched] = deque()
        self._sequences: dict[str, list[Sequence]] = {}
        self._counters = dict.fromkeys(
            (
                "num_rounds",
                "num_prompt_tokens",
                "num_cached_tokens",
                "num_generated_tokens",
                "num_draft_tokens",
                "num_accepted_tokens",
            ),
            0,
        )

    # -- requests -----------------------------------------------------------------------------------------------------

    def check(self, request: Request) -> int:
        """The number of tokens that may be generated; raises InvalidRequest for what can never run."""
        params, length = request.params, len(request.prompt_ids)
        vocab_size = self.runner.state.vocab_size
        if length == 0:
            raise InvalidRequest("the prompt is empty", param="prompt")
        if length >= self.context:
            raise InvalidRequest(
                f"the prompt has {length} tokens, the context holds {self.context} and needs room for an answer",
                param="prompt",
            )
        named = [
            ("prompt", request.prompt_ids),
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", params.logit_bias),
        ]
        for name, ids in named:
            if not all(0 <= token < vocab_size for token in ids):
                raise InvalidRequest(f"{name} has a token id outside 0..{vocab_size - 1}", param=name)
        budget = self.context - length
        if params.max_tokens is not None:
            budget = min(budget, params.max_tokens)
        if not self.scheduler.fits(length + budget):
            raise InvalidRequest(
                f"prompt and answer of {length + budget} tokens need more KV cache than there is; lower max_tokens",
                param="max_tokens",
            )
        return budget

    def add(self, request: Request, deliver: Deliver) -> None:
        """Queue all choices of a request. Raises InvalidRequest."""
        budget, params = self.check(request), request.params
        if request.request_id in self._sequences:
            raise InvalidRequest(f"a request with the id '{request.request_id}' is running", param="request_id")
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        stops = dict.fromkeys(params.stop_token_ids + (() if params.ignore_eos else self.eos_ids))
        keys = page_keys(request.prompt_ids, self.scheduler.config.page_size)
        choices: list[Sequence] = []
        for choice in range(params.n):
            sequence = Sequence(
                request=request,
                choice=choice,
                seed=seed,
                budget=budget,
                stop_ids=tuple(stops),
                keys=keys,
                deliver=deliver,
                leader=choices[0] if choices else None,
            )
            choices.append(sequence)
            self.scheduler.add(sequence)
        self._sequences[request.request_id] = choices
        self._counters["num_prompt_tokens"] += len(request.prompt_ids)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        for sequence in list(self._sequences.get(request_id, ())):
            if choice is None or sequence.choice == choice:
                self._emit(sequence, (), FinishReason.CANCELLED)

    def fail_all(self, message: str, finish: FinishReason) -> None:
        """End everything that runs or waits, with `message` as the error."""
        for sequence in [s for choices in self._sequences.values() for s in choices]:
            self._emit(sequence, (), finish, error=message)
        self._launched.clear()

    @property
    def is_idle(self) -> bool:
        return not self._sequences and not self._launched

    def warm_up(self, seconds: float) -> None:
        """Touch every kind of step, and time each number of drafts for one sequence, for at most about `seconds`."""
        size = self.runner.state.vocab_size
        prompt = tuple(random.Random(0).randrange(size) for _ in range(min(64, self.context - 1)))
        params = SamplingParams(ignore_eos=True, seed=0, max_tokens=max(1, min(256, self.context - len(prompt))))
        counters = dict(self._counters)
        self.add(Request(request_id="warm-up", prompt_ids=prompt, params=params), lambda event: None)
        end = time.perf_counter() + seconds
        while not self.is_idle:
            self.step()
            seen = self._counters["num_rounds"] > counters["num_rounds"] + self.lag
            if seen and (self.draft_length.is_calibrated or time.perf_counter() > end):
                self.cancel("warm-up")
        self.draft_length.forget_acceptance()
        self._counters = counters

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Launch the next step, if there is one, and deliver the results of the step `lag` steps before it."""
        num_running = sum(s.phase is Phase.DECODE for s in self.scheduler.running)
        plan = self.scheduler.plan(self.draft_length.choose(num_running) if num_running else 0)
        if not plan.is_empty:
            self._launch(plan)
        if self._launched and (plan.is_empty or len(self._launched) > self.lag):
            self._read(self._launched.popleft())

    def _launch(self, plan: StepPlan) -> None:
        watch = _Stopwatch(self.runner.state.device)
        output = self.runner.run(plan)
        rounds = []
        if output.round is not None:
            rounds.append((plan.decode, plan.num_drafts + 1, _to_host(output.round)))
            if self.expert_counts is not None:
                self.expert_counts.extend(_distinct_experts(output.round.expert_ids_LTK))
        rounds += [([sequence], 1, _to_host(first)) for sequence, first in output.first_tokens]
        watch.stop()
        self._launched.append(_Launched(plan, rounds, watch))
        self._counters["num_cached_tokens"] += sum(s.num_cached for s in plan.admitted)

    def _read(self, step: _Launched) -> None:
        for sequences, reserved, results in step.rounds:
            if results.event is not None:
                results.event.synchronize()
            for row, sequence in enumerate(sequences):
                if sequence.phase is not Phase.DONE:  # cancelled or ended while this step was under way
                    self._deliver(sequence, reserved, results, row)
        plan = step.plan
        if plan.decode:
            self._counters["num_rounds"] += 1
            if not (plan.chunks or plan.swap_in or plan.swap_out):
                self.draft_length.observe_cost(len(plan.decode), plan.num_drafts, step.watch.seconds())

    def _deliver(self, sequence: Sequence, reserved: int, results: _HostRound, row: int) -> None:
        committed, accepted, stopped, ended, num_drafts, *rest = results.packed[row].tolist()
        tokens, drafts = rest[:committed], rest[results.num_rows : results.num_rows + num_drafts]
        is_first = sequence.known_length == sequence.prompt_length
        self.scheduler.committed(sequence, reserved, committed)
        if committed == 0:
            return
        trace = None
        if not is_first:
            trace = RoundTrace(draft_ids=tuple(drafts), num_accepted=accepted)
            self._counters["num_draft_tokens"] += num_drafts
            self._counters["num_accepted_tokens"] += accepted
            # A drafter that had nothing to offer counts as wrong: the rows were paid for.
            self.draft_length.observe_accepted(reserved - 1, accepted)
        self._counters["num_generated_tokens"] += committed
        finish = (FinishReason.STOP if stopped else FinishReason.LENGTH) if ended else None
        logprobs = self._logprobs(sequence, results, row, committed)
        self._emit(sequence, tuple(tokens), finish, logprobs=logprobs, trace=trace)

    @staticmethod
    def _logprobs(sequence: Sequence, results: _HostRound, row: int, committed: int) -> tuple[TokenLogprob, ...] | None:
        wanted = sequence.request.params.logprobs
        if wanted is None or results.logprobs is None:
            return None
        chosen, top, top_ids = (tensor[row].tolist() for tensor in results.logprobs)
        return tuple(
            TokenLogprob(logprob=chosen[i], top=tuple(zip(top_ids[i][:wanted], top[i][:wanted], strict=True)))
            for i in range(committed)
        )

    def _emit(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
        *,
        logprobs: tuple[TokenLogprob, ...] | None = None,
        trace: RoundTrace | None = None,
        error: str | None = None,
    ) -> None:
        request_id = sequence.request.request_id
        event = TokenEvent(
            request_id=request_id,
            choice=sequence.choice,
            token_ids=tokens,
            logprobs=logprobs,
            finish=finish,
            round=trace,
            num_cached=sequence.num_cached,
            error=error,
        )
        if finish is not None:
            self._forget(sequence)
        try:
            sequence.deliver(event)
        except Exception:
            log.exception("whoever takes the tokens of request %s failed; it is dropped", request_id)
            self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """Give back what a sequence holds. Idempotent."""
        self.scheduler.finish(sequence)
        choices = self._sequences.get(sequence.request.request_id, [])
        if sequence in choices:
            choices.remove(sequence)
            if not choices:
                del self._sequences[sequence.request.request_id]

    # -- numbers ------------------------------------------------------------------------------------------------------

    def stats(self, memory_bytes: Mapping[str, int] | None = None) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_preemptions=scheduler.num_preemptions,
            pages_used={"full": scheduler.full.num_held, "sliding": scheduler.sliding.num_held},
            pages_total={"full": scheduler.full.num_pages, "sliding": scheduler.sliding.num_pages},
            memory_bytes=memory_bytes or {},
            **self._counters,
        )


def _distinct_experts(expert_ids_LTK: Tensor) -> list[int]:
    """Distinct experts that a round read, per layer."""
    return [len(set(layer.flatten().tolist()) - {-1}) for layer in expert_ids_LTK]
