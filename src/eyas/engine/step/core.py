"""The step loop: takes requests, runs plans, reads results `lag` steps later, emits token events. One thread, no queue.

This file knows sequences and plans; tensors belong to the runner, threads to `engine.ports.threaded`.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait

from eyas.base.checks import check_request
from eyas.base.errors import InvalidRequest
from eyas.base.ports import Deliver
from eyas.base.types import (
    EngineStats,
    FinishReason,
    PageOwner,
    Request,
    RoundTrace,
    StepReport,
    TokenEvent,
    TokenLogprob,
)
from eyas.engine.draft_length.choice import DraftLength, RoundOutcome, Tried
from eyas.engine.draft_length.round_drafts import RoundDrafts
from eyas.engine.draft_length.step_costs import Timing
from eyas.engine.round.types import Logprobs, RoundOutput
from eyas.engine.sequences.constraint import (
    Compiled,
    Constraint,
    GrammarCache,
    GrammarMatcher,
    is_constrained,
    num_words,
)
from eyas.engine.sequences.mask_jobs import MaskThreads, SequenceMasks, wait_for_masks
from eyas.engine.sequences.ngram_index import LookupMatch, NgramIndex
from eyas.engine.sequences.pages import page_keys
from eyas.engine.sequences.sequence import Phase, Sequence
from eyas.engine.step.results import FAILED, NUM_COMMITTED, NUM_DRAFTS, HostRound, Launched, Stopwatch, to_host
from eyas.engine.step.runner import Runner
from eyas.engine.step.scheduler import Scheduler, StepPlan
from eyas.kernels.reference.failures import NOT_FINITE
from eyas.kernels.reference.router import route

__all__ = ["EngineCore"]

POLL_S = 0.01  # wait of a step that has nothing to do until a grammar or mask is ready
MASK_TIMEOUT_S = 10.0
TOO_SLOW = (
    f"one token's mask took more than {MASK_TIMEOUT_S:.0f} s; simplify the grammar or schema that binds this answer"
)
MODEL_FAILED = "the model produced NaN or infinite logits for this request, which was ended"
log = logging.getLogger(__name__)


class EngineCore:
    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        draft_length: DraftLength,
        grammars: GrammarCache,
        *,
        context: int,
        eos_ids: tuple[int, ...],
        seed: int | None = None,
        lag: int = 0,
        track_experts: bool = False,
    ) -> None:
        """`lag` steps are launched before the first result is read: 1 keeps a GPU busy, 0 suits a CPU."""
        self.runner = runner
        self.scheduler = scheduler
        self.draft_length = draft_length
        self.grammars = grammars
        self.context = context
        self.eos_ids = eos_ids
        self.lag = lag
        self.expert_counts: list[int] | None = [] if track_experts else None
        self._seeds = random.Random(seed)
        self._paused: set[Sequence] = set()  # sequences that the last plan left out
        self._mask_threads = MaskThreads()
        self._launched: deque[Launched] = deque()
        self._sequences: dict[str, list[Sequence]] = {}
        self._compiling: list[tuple[Future[Compiled], list[Sequence]]] = []
        self._unreported: list[TokenEvent] = []
        self.reset_counters()

    # -- requests -----------------------------------------------------------------------------------------------------

    def check(self, request: Request) -> int:
        """Return how many tokens may be generated; raises InvalidRequest for a request that can never run."""
        length = len(request.prompt_ids)
        budget = check_request(request, context=self.context, vocab_size=self.runner.state.vocab_size)
        if not self.scheduler.fits(length + budget):
            raise InvalidRequest(
                f"prompt and answer of {length + budget} tokens need more KV cache than there is; lower max_tokens",
                param="max_tokens",
            )
        return budget

    def add(self, request: Request, deliver: Deliver) -> None:
        """Queue all choices of a request, once its grammar is compiled. Raises InvalidRequest.

        A grammar that does not compile ends each choice with FinishReason.INVALID in a later step.
        """
        budget, params = self.check(request), request.params
        if request.request_id in self._sequences:
            raise InvalidRequest(f"a request with the id '{request.request_id}' is running", param="request_id")
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        stops = dict.fromkeys(params.stop_token_ids + (() if params.ignore_eos else self.eos_ids))
        keys = page_keys(request.prompt_ids, self.scheduler.config.page_size, request.cache_salt.encode())
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
        if params.grammar is None:
            self._queue(choices, None)
        else:
            self._compiling.append((self.grammars.compile(params.grammar), list(choices)))
        self._sequences[request.request_id] = choices  # last: a request that raised leaves nothing here

    def _queue(self, choices: list[Sequence], grammar: Compiled | None) -> None:
        for sequence in choices:
            params = sequence.request.params
            if is_constrained(params):
                matcher = None if grammar is None else GrammarMatcher(grammar, self.eos_ids)
                size = self.runner.state.vocab_size
                constraint, first = Constraint(params, size, matcher), None if grammar is None else grammar.first
                sequence.masks = SequenceMasks(constraint, self._mask_threads, num_words(size), first)
        for sequence in choices:
            self.scheduler.add(sequence)
            if sequence.choice == 0:
                self._counters["num_prompt_tokens"] += sequence.prompt_length

    def _take_compiled(self) -> None:
        """Queue requests whose grammars are compiled, and end those whose grammars failed."""
        if not (self.scheduler.running or self.scheduler.waiting or self._launched):
            wait([grammar for grammar, _ in self._compiling], POLL_S, FIRST_COMPLETED)
        for entry in [entry for entry in self._compiling if entry[0].done()]:
            self._compiling.remove(entry)
            grammar, choices = entry
            left = [sequence for sequence in choices if sequence.phase is Phase.NEW]
            if error := grammar.exception():
                for sequence in left:
                    self._emit(sequence, (), FinishReason.INVALID, error=str(error))
            else:
                self._queue(left, grammar.result())

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        for sequence in list(self._sequences.get(request_id, ())):
            if choice is None or sequence.choice == choice:
                self._emit(sequence, (), FinishReason.CANCELLED)

    def fail_all(self, message: str | None, finish: FinishReason) -> None:
        """End all running and waiting sequences, with `message` as the error."""
        for sequence in [s for choices in self._sequences.values() for s in choices]:
            self._emit(sequence, (), finish, error=message)
        self._launched.clear()
        self._compiling.clear()

    @property
    def is_idle(self) -> bool:
        return not self._sequences and not self._launched

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> StepReport | None:
        """Launch the next step, if there is one, and deliver the results of the step `lag` steps before it.

        The report holds every event delivered since the last report: of the step read here, and of additions,
        cancellations and failures before it. Where no step was read, `step` is the last one's number and `ms` is 0;
        None if there were no events either. A caller that steps after each batch of requests and cancellations, even on
        an idle engine, thus reports every event once, and all events of a step in one report.
        """
        if self._compiling:
            self._take_compiled()
        plan = self._plan(self._pausing())
        if not plan.is_empty:
            self._launch(plan)
        elif not self._launched:
            masks = [s.masks for s in self.scheduler.running if s.masks is not None]
            wait_for_masks(masks, POLL_S, for_any=True)
        if not self._launched or not (plan.is_empty or len(self._launched) > self.lag):
            return self.take_report()
        step = self._launched.popleft()
        self._read(step)
        self._num_steps += 1
        num_prompt_tokens = sum(chunk.end - chunk.start for chunk in step.plan.chunks)
        num_drafts = step.plan.drafts.num_drafts if step.plan.decode else 0
        return self._report(step.watch.seconds() * 1e3, num_drafts, num_prompt_tokens)

    def _pausing(self) -> set[Sequence]:
        """Return the sequences with late masks, which the next round leaves out. Ends those that wait too long."""
        pausing = set()
        for sequence in [s for s in self.scheduler.running if s.phase is Phase.DECODE and s.masks is not None]:
            assert sequence.masks is not None
            if sequence.masks.busy_s > MASK_TIMEOUT_S:
                self._emit(sequence, (), FinishReason.ERROR, error=TOO_SLOW)
            elif not sequence.masks.may_run(is_in_flight=sequence.num_in_flight > 0):
                pausing.add(sequence)
        return pausing

    def _plan(self, pausing: set[Sequence]) -> StepPlan:
        decoding = [s for s in self.scheduler.running if s.phase is Phase.DECODE and s not in pausing]
        running = {s.slot: s for s in decoding if s.slot is not None}
        if not running:
            self._paused |= pausing
            return self.scheduler.plan(pausing=pausing)
        caps = [max(0, s.max_length - s.known_length - 1) for s in running.values()]
        matches = [self._lookup_match(slot, sequence) for slot, sequence in running.items()]
        choice = self.draft_length.choose(list(running), caps, matches)
        was_paused, self._paused = not self._paused.isdisjoint(decoding), pausing
        drafts = RoundDrafts.of(
            list(running),
            choice,
            self.draft_length.cut(list(running), choice),
            without={slot for slot, s in running.items() if s.masks and s.masks.is_slow},
            # Tokens committed in the last round before the pause.
            num_missed=self.scheduler.config.max_drafts + 1 if was_paused else 0,
        )
        return self.scheduler.plan(drafts, pausing)

    def _lookup_match(self, slot: int, sequence: Sequence) -> LookupMatch:
        if sequence.ngram_index is None:
            return LookupMatch(0, 0)
        most = [step.plan.drafts.limits.get(slot, 0) + 1 for step in self._launched if step.plan.decode]
        return LookupMatch(sequence.ngram_index.match, sum(most))

    def take_report(self) -> StepReport | None:
        """Return a report of the events not reported yet, or None. For use after `fail_all` or a failed step."""
        return self._report(0.0, 0, 0) if self._unreported else None

    def _report(self, ms: float, num_drafts: int, num_prompt_tokens: int) -> StepReport:
        events, self._unreported = tuple(self._unreported), []
        return StepReport(
            step=self._num_steps,
            ms=ms,
            num_drafts=num_drafts,
            events=events,
            stats=self.stats(),
            pages=tuple(
                PageOwner(
                    request_id=sequence.request.request_id,
                    choice=sequence.choice,
                    num_full=len(sequence.full_pages),
                    num_sliding=len(sequence.sliding_pages) - sequence.num_sliding_left,
                )
                for sequence in self.scheduler.running
            ),
            num_prompt_tokens=num_prompt_tokens,
        )

    def _launch(self, plan: StepPlan) -> None:
        watch = Stopwatch(self.runner.state.device)
        now = time.perf_counter()
        for sequence in plan.admitted:
            assert sequence.slot is not None
            sequence.began = now
            self.draft_length.enter(sequence.slot)
        output = self.runner.run(plan, keeps_routing=self.expert_counts is not None)
        rounds = [([sequence], 1, to_host(first)) for sequence, first in output.first_tokens]
        if output.round is not None:
            rounds.append((plan.decode, plan.drafts.num_drafts + 1, to_host(output.round)))
        watch.stop()
        if output.round is not None and self.expert_counts is not None:
            self.expert_counts.extend(_distinct_experts(output.round, self.runner.target.config.experts_per_token))
        self._launched.append(Launched(plan, rounds, watch))
        self._counters["num_cached_tokens"] += sum(s.num_cached for s in plan.admitted if s.choice == 0)

    def _read(self, step: Launched) -> None:
        plan, tried = step.plan, []
        for sequences, reserved, results in step.rounds:
            if results.event is not None:
                results.event.synchronize()
            # The newest first: its first token is delivered first, and the others' inter-token latency is unchanged.
            for row, sequence in reversed(list(enumerate(sequences))):
                if sequence.phase is not Phase.DONE:  # cancelled or ended after this step was launched
                    tried += self._deliver(sequence, reserved, results, row, plan)
        if plan.decode:
            self._counters["num_rounds"] += 1
            self.draft_length.observe(RoundOutcome(tried, self._timing(step)))

    def _timing(self, step: Launched) -> Timing | None:
        """Return the time of a step's round; None if prefill or swapping shared the step, a mask was late, or expert
        tracking was on.

        Sequences that had ended before the launch, which the host learns later, were not computed and do not count.
        """
        plan, packed = step.plan, step.rounds[-1][2].packed
        num_live = int(((packed[:, NUM_COMMITTED] > 0) | (packed[:, FAILED] > 0)).sum())
        is_mixed = plan.chunks or plan.swap_in or plan.swap_out or step.rounds[-1][2].num_ready
        if is_mixed or self.expert_counts is not None or not num_live:
            return None
        num_rows = num_live + int(packed[:, NUM_DRAFTS].sum())
        return Timing(num_live, num_rows, plan.drafts.head_drafts, step.watch.seconds())

    def _deliver(self, sequence: Sequence, reserved: int, results: HostRound, row: int, plan: StepPlan) -> list[Tried]:
        """Emit a sequence's new tokens, and return its drafts and their outcome, empty for its first token."""
        committed, accepted, stopped, ended, failed, num_drafts, *rest = results.packed[row].tolist()
        num_rows = results.num_rows
        tokens, drafts, levels = rest[:committed], rest[num_rows:][:num_drafts], rest[2 * num_rows - 1 :]
        is_first = sequence.known_length == sequence.prompt_length
        slot, room = sequence.slot, sequence.max_length - sequence.known_length - 1
        room = min(room, results.num_ready.get(row, room))
        self.scheduler.committed(sequence, reserved, committed)
        if committed == 0 and not failed:
            return []
        trace: RoundTrace | None = None
        tried: list[Tried] = []
        if not is_first:
            trace = RoundTrace(draft_ids=tuple(drafts), num_accepted=accepted)
            self._counters["num_draft_tokens"] += num_drafts
            self._counters["num_accepted_tokens"] += accepted
            # Drafts that the token budget or a late mask cut do not count as wrong; drafts that a drafter lacked do.
            assert slot is not None
            asked, by_lookup = min(plan.drafts.limits[slot], room), slot in plan.drafts.by_lookup
            lookups = sequence.ngram_index.extend(tokens) if sequence.ngram_index else ()
            levels = [] if by_lookup else levels[:asked]
            tried = [Tried(slot, asked, accepted, min(num_drafts, room), by_lookup, levels, lookups)]
        elif self.draft_length.looks_up:
            sequence.ngram_index = NgramIndex((*sequence.request.prompt_ids, *tokens), self.runner.lookup_sizes)
        self._counters["num_generated_tokens"] += committed
        if sequence.masks is not None:
            sequence.masks.delivered(tokens)
        finish, error = (FinishReason.STOP if stopped else FinishReason.LENGTH) if ended else None, None
        if failed:
            finish, error = FinishReason.ERROR, self._failure_of(sequence, failed)
        num_top, logprobs, prompt_logprobs = sequence.request.params.logprobs, None, None
        if num_top is not None and results.logprobs is not None:
            logprobs = _token_logprobs(Logprobs(*(tensor[row] for tensor in results.logprobs)), num_top, committed)
        if is_first and sequence.wants_prompt_logprobs and not failed:
            prompt_logprobs = _prompt_logprobs(sequence, results)
        self._emit(
            sequence,
            tuple(tokens),
            finish,
            logprobs=logprobs,
            trace=trace,
            error=error,
            prompt_logprobs=prompt_logprobs,
        )
        return tried

    def _failure_of(self, sequence: Sequence, code: int) -> str:
        if code == NOT_FINITE:
            self.scheduler.unpublish(sequence)
            return MODEL_FAILED
        assert sequence.masks is not None
        return sequence.masks.failure

    def _emit(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
        *,
        logprobs: tuple[TokenLogprob, ...] | None = None,
        trace: RoundTrace | None = None,
        error: str | None = None,
        prompt_logprobs: tuple[TokenLogprob, ...] | None = None,
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
            prompt_logprobs=prompt_logprobs,
            began=sequence.began,
        )
        if finish is not None:
            self._forget(sequence)
        self._unreported.append(event)
        try:
            sequence.deliver(event)
        except Exception:
            log.exception("token callback of request %s raised; the request is dropped", request_id)
            self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """Release all that a sequence holds. Idempotent."""
        self.scheduler.finish(sequence)
        choices = self._sequences.get(sequence.request.request_id, [])
        if sequence in choices:
            choices.remove(sequence)
            if not choices:
                del self._sequences[sequence.request.request_id]

    # -- numbers ------------------------------------------------------------------------------------------------------

    def reset_counters(self) -> None:
        """Reset the counters to 0 and drop unreported events."""
        self._num_steps = 0
        self._unreported.clear()
        names = ("rounds", "prompt_tokens", "cached_tokens", "generated_tokens", "draft_tokens", "accepted_tokens")
        self._counters = dict.fromkeys((f"num_{name}" for name in names), 0)

    def stats(self, memory_bytes: Mapping[str, int] | None = None) -> EngineStats:
        scheduler = self.scheduler
        num_compiling = sum(s.phase is Phase.NEW for _, choices in self._compiling for s in choices)
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + num_compiling,
            num_preemptions=scheduler.num_preemptions,
            pages_used={"full": scheduler.full.num_held, "sliding": scheduler.sliding.num_held},
            pages_idle={"full": scheduler.full.num_idle, "sliding": scheduler.sliding.num_idle},
            pages_total={"full": scheduler.full.num_pages, "sliding": scheduler.sliding.num_pages},
            memory_bytes=memory_bytes or {},
            **self._counters,
        )


def _token_logprobs(rows: Logprobs, num_top: int, count: int) -> tuple[TokenLogprob, ...]:
    chosen, top, top_ids = (tensor[:count].tolist() for tensor in rows)
    return tuple(
        TokenLogprob(logprob=logprob, top=tuple(zip(ids[:num_top], values[:num_top], strict=True)))
        for logprob, values, ids in zip(chosen, top, top_ids, strict=True)
    )


def _prompt_logprobs(sequence: Sequence, results: HostRound) -> tuple[TokenLogprob, ...]:
    wanted, count = sequence.request.params.prompt_logprobs, sequence.prompt_length - 1
    if results.prompt_logprobs is None or wanted is None:  # a prompt of one token
        return ()
    sequence.prompt_logprobs.clear()
    return _token_logprobs(results.prompt_logprobs, wanted, count)


def _distinct_experts(output: RoundOutput, top_k: int) -> list[int]:
    """Return how many distinct experts the live rows of a round chose, by layer."""
    ids = [route(logits, output.live_T, top_k)[0] for logits in output.router_logits]
    return [len(set(layer.flatten().tolist()) - {-1}) for layer in ids]
