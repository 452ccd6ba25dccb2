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
from eyas.base.errors import EyasError, InvalidRequest
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
from eyas.engine.draft_length.round_limit import most_drafts
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
from eyas.engine.step.results import (
    FAILED,
    NUM_COMMITTED,
    NUM_DRAFTS,
    HostRound,
    Launched,
    Stopwatch,
    to_host,
)
from eyas.engine.step.runner import Runner
from eyas.engine.step.scheduler import Scheduler, StepPlan
from eyas.engine.step.target_itl import TargetItl
from eyas.kernels.reference.layers.router import route
from eyas.kernels.reference.rounds.accept import NUM_NUMBERS
from eyas.kernels.reference.rounds.failures import NOT_FINITE

__all__ = ["EngineCore"]

DECODE, DONE = Phase.DECODE, Phase.DONE  # slow to look up in an enumeration
NO_MATCH = LookupMatch(0, 0)
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
        target_itl_s: float | None = None,
    ) -> None:
        """`lag` steps are launched before the first result is read: 1 keeps a GPU busy, 0 suits a CPU."""
        self.runner = runner
        self.scheduler = scheduler
        self.draft_length = draft_length
        self.grammars = grammars
        self.context = context
        self.eos_ids = eos_ids
        self.lag = lag
        self.target_itl: TargetItl | None = None
        if target_itl_s:
            config = scheduler.config
            self.target_itl = TargetItl(target_itl_s, tile=config.tile, usual_rows=config.busy_chunk_tokens)
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
                finish = FinishReason.INVALID if isinstance(error, EyasError) else FinishReason.ERROR
                for sequence in left:
                    self._emit(sequence, (), finish, error=str(error) or repr(error))
            else:
                self._queue(left, grammar.result())

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        for sequence in list(self._sequences.get(request_id, ())):
            if choice is None or sequence.choice == choice:
                self._emit(sequence, (), FinishReason.CANCELLED)

    def fail_all(self, message: str | None, finish: FinishReason) -> None:
        """End all running and waiting sequences, with `message` as the error, whatever else fails."""
        for sequence in [s for choices in self._sequences.values() for s in choices]:
            try:
                self._emit(sequence, (), finish, error=message)
            except Exception:
                log.exception("what request %s held was not released", sequence.request.request_id)
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
        num_drafts = step.plan.drafts.num_drafts if step.plan.decode else 0
        undrafted_s = self.draft_length.undrafted_s(len(step.plan.decode)) if step.plan.decode else None
        return self._report(step.watch.seconds() * 1e3, num_drafts, step.plan.num_prompt_tokens, undrafted_s)

    def _pausing(self) -> set[Sequence]:
        """Return the sequences with late masks, which the next round leaves out. Ends those that wait too long."""
        pausing = set()
        for sequence in [s for s in self.scheduler.running if s.phase is DECODE and s.masks is not None]:
            assert sequence.masks is not None
            if sequence.masks.busy_s > MASK_TIMEOUT_S:
                self._emit(sequence, (), FinishReason.ERROR, error=TOO_SLOW)
            elif not sequence.masks.may_run(is_in_flight=sequence.num_in_flight > 0):
                pausing.add(sequence)
        return pausing

    def _plan(self, pausing: set[Sequence]) -> StepPlan:
        decoding = [s for s in self.scheduler.running if s.phase is DECODE and s not in pausing]
        if not decoding:
            self._paused |= pausing
            return self.scheduler.plan(pausing=pausing)
        slots = [s.slot for s in decoding if s.slot is not None]
        caps = [max(0, s.max_length - s.known_length - 1) for s in decoding]
        matches = self._lookup_matches(decoding) if self.draft_length.looks_up else None
        config = self.scheduler.config
        most = most_drafts(self.runner.stages.rows(len(slots)), config.max_drafts, config.max_rows)
        choice = self.draft_length.choose(slots, caps, matches, most=most)
        was_paused, self._paused = not self._paused.isdisjoint(decoding), pausing
        drafts = RoundDrafts.of(
            slots,
            choice,
            self.draft_length.cut(slots, choice),
            without={slot for slot, s in zip(slots, decoding, strict=True) if s.masks and s.masks.is_slow},
            # Tokens committed in the last round before the pause.
            num_missed=config.max_drafts + 1 if was_paused else 0,
        )
        if self.target_itl is None:
            return self.scheduler.plan(drafts, pausing)
        plan = self.scheduler.plan(drafts, pausing, prompt_rows=self.target_itl.rows())
        self.target_itl.read(plan.num_prompt_tokens)
        return plan

    def _lookup_matches(self, decoding: list[Sequence]) -> list[LookupMatch]:
        limits = [step.plan.drafts.limits for step in self._launched if step.plan.decode]
        matches = []
        for sequence in decoding:
            match, slot = sequence.ngram_index.match if sequence.ngram_index else 0, sequence.slot
            assert slot is not None
            most = sum(of_step.get(slot, 0) + 1 for of_step in limits) if match else 0
            matches.append(LookupMatch(match, most) if match else NO_MATCH)
        return matches

    def take_report(self) -> StepReport | None:
        """Return a report of the events not reported yet, or None. For use after `fail_all` or a failed step."""
        return self._report(0.0, 0, 0) if self._unreported else None

    def _report(
        self, ms: float, num_drafts: int, num_prompt_tokens: int, undrafted_s: float | None = None
    ) -> StepReport:
        events, self._unreported = tuple(self._unreported), []
        owners = [
            PageOwner(s.request.request_id, s.choice, len(s.full_pages), len(s.sliding_pages) - s.num_sliding_left)
            for s in self.scheduler.running
        ]
        return StepReport(
            step=self._num_steps,
            ms=ms,
            num_drafts=num_drafts,
            events=events,
            stats=self.stats(),
            pages=tuple(owners),
            num_prompt_tokens=num_prompt_tokens,
            undrafted_ms=None if undrafted_s is None else undrafted_s * 1e3,
        )

    def _launch(self, plan: StepPlan) -> None:
        watch = Stopwatch(self.runner.state.device)
        now = time.perf_counter()
        for sequence in plan.admitted:
            assert sequence.slot is not None
            sequence.began = now
            self.draft_length.enter(sequence.slot)
        output = self.runner.run(plan, keeps_routing=self.expert_counts is not None)
        rounds = []
        if (first := output.first_tokens) is not None:
            rounds.append((first.sequences, 1, to_host(first.output, first.sequences)))
        if output.round is not None:
            rounds.append((plan.decode, plan.drafts.num_drafts + 1, to_host(output.round, plan.decode)))
        watch.stop()
        if output.round is not None and self.expert_counts is not None:
            self.expert_counts.extend(_distinct_experts(output.round, self.runner.target.config.experts_per_token))
        self._launched.append(Launched(plan, rounds, watch))
        self._counters["num_cached_tokens"] += sum(s.num_cached for s in plan.admitted if s.choice == 0)

    def _read(self, step: Launched) -> None:
        plan, tried = step.plan, list[Tried]()
        for sequences, reserved, results in step.rounds:
            if results.event is not None:
                results.event.synchronize()
            numbers = results.packed.tolist()
            # The newest first: its first token is delivered first, and the others' inter-token latency is unchanged.
            for row in range(len(sequences) - 1, -1, -1):
                sequence = sequences[row]
                if sequence.phase is not DONE:  # cancelled or ended after this step was launched
                    outcome = self._deliver(sequence, reserved, results, row, numbers[row], plan.drafts)
                    if outcome is not None:
                        tried.append(outcome)
        if plan.decode:
            self._counters["num_rounds"] += 1
            timing = self._timing(step)
            self.draft_length.observe(RoundOutcome(tried, timing))
            if self.target_itl is not None and timing is not None:
                self.target_itl.observe(timing.num_prompt_rows, timing.seconds)

    def _timing(self, step: Launched) -> Timing | None:
        """Return the time of a step's round and prompts; None if swapping shared the step, a mask was late, or expert
        tracking was on.

        Sequences that had ended before the launch, which the host learns later, were not computed and do not count.
        """
        plan, packed = step.plan, step.rounds[-1][2].packed.numpy()
        num_live = int(((packed[:, NUM_COMMITTED] > 0) | (packed[:, FAILED] > 0)).sum())
        is_mixed = plan.swap_in or plan.swap_out or step.rounds[-1][2].num_ready
        if is_mixed or self.expert_counts is not None or not num_live:
            return None
        num_rows = num_live + int(packed[:, NUM_DRAFTS].sum())
        return Timing(num_live, num_rows, plan.drafts.head_drafts, step.watch.seconds(), plan.num_prompt_tokens)

    def _deliver(
        self, sequence: Sequence, reserved: int, results: HostRound, row: int, numbers: list[int], drafts: RoundDrafts
    ) -> Tried | None:
        """Emit a sequence's new tokens, and return its drafts and their outcome; None for its first token.

        `numbers` are its row of `results.packed`.
        """
        committed, accepted, stopped, ended, failed, num_drafts = numbers[:NUM_NUMBERS]
        is_first = sequence.known_length == sequence.prompt_length
        room = sequence.max_length - sequence.known_length - 1
        self.scheduler.committed(sequence, reserved, committed)
        if committed == 0 and not failed:
            return None
        tokens, num_rows = numbers[NUM_NUMBERS : NUM_NUMBERS + committed], results.num_rows
        trace, tried, slot, index = None, None, sequence.slot, sequence.ngram_index
        if not is_first:
            first = NUM_NUMBERS + num_rows
            trace = RoundTrace(tuple(numbers[first : first + num_drafts]), accepted)
            self._counters["num_draft_tokens"] += num_drafts
            self._counters["num_accepted_tokens"] += accepted
            # Drafts that the token budget or a late mask cut do not count as wrong; drafts that a drafter lacked do.
            assert slot is not None
            if results.num_ready:
                room = min(room, results.num_ready.get(row, room))
            asked, by_lookup = min(drafts.limits[slot], room), slot in drafts.by_lookup
            lookups = index.extend(tokens) if index is not None else ()
            levels = () if by_lookup else numbers[first + num_rows - 1 :][:asked]
            tried = Tried(slot, asked, accepted, min(num_drafts, room), by_lookup, levels, lookups)
        elif self.draft_length.looks_up:
            sequence.ngram_index = NgramIndex((*sequence.request.prompt_ids, *tokens), self.runner.lookup_sizes)
        self._counters["num_generated_tokens"] += committed
        if sequence.masks is not None:
            sequence.masks.delivered(tokens)
        finish, error = None, None
        if failed:
            finish, error = FinishReason.ERROR, self._failure_of(sequence, failed)
        elif ended:
            finish = FinishReason.STOP if stopped else FinishReason.LENGTH
        num_top, logprobs, prompt_logprobs = sequence.request.params.logprobs, None, None
        if num_top is not None and results.logprobs is not None:
            logprobs = _token_logprobs(Logprobs(*(tensor[row] for tensor in results.logprobs)), num_top, committed)
        if is_first and sequence.wants_prompt_logprobs and not failed:
            prompt_logprobs = _prompt_logprobs(sequence, results.prompt_logprobs.get(row))
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
        try:
            if finish is not None:
                self._forget(sequence)
        finally:  # a last event that is not delivered leaves someone waiting
            self._unreported.append(event)
            try:
                sequence.deliver(event)
            except Exception:
                log.exception("token callback of request %s raised; the request is dropped", request_id)
                self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """Release all that a sequence holds. Idempotent. If that fails it is forgotten all the same."""
        choices = self._sequences.get(sequence.request.request_id, [])
        if sequence in choices:
            choices.remove(sequence)
            if not choices:
                del self._sequences[sequence.request.request_id]
        self.scheduler.finish(sequence)

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


def _prompt_logprobs(sequence: Sequence, scored: Logprobs | None) -> tuple[TokenLogprob, ...]:
    wanted, count = sequence.request.params.prompt_logprobs, sequence.prompt_length - 1
    if scored is None or wanted is None:  # a prompt of one token
        return ()
    sequence.prompt_logprobs.clear()
    return _token_logprobs(scored, wanted, count)


def _distinct_experts(output: RoundOutput, top_k: int) -> list[int]:
    """Return how many distinct experts the live rows of a round chose, by layer."""
    ids = [route(logits, output.live_T, top_k)[0] for logits in output.router_logits]
    return [len(set(layer.flatten().tolist()) - {-1}) for layer in ids]
