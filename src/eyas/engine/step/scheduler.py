"""Schedules steps: takes sequences and page counts, returns a StepPlan. Pure host logic, no tensors and no clock.

Sequences run in order of arrival. Each step continues prompts within a token budget and decodes every running sequence;
the budget is small while any sequence decodes, since all of them wait for the prompts of a step. When pages run out,
the latest arrival is preempted: its pages are copied to host memory and back, never recomputed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from eyas.engine.draft_length.round_drafts import RoundDrafts
from eyas.engine.sequences.pages import PagePool
from eyas.engine.sequences.sequence import Phase, Sequence

__all__ = ["Chunk", "Scheduler", "SchedulerConfig", "StepPlan", "SwapIn", "SwapOut"]

REENTRY_TOKENS = 2048  # of a shared beginning no more are computed again where prompts part for the first time
MAX_PROMPTS = 4  # prompts of a step: each takes a pass that reads most experts, however short it is


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    page_size: int
    num_full_pages: int
    num_sliding_pages: int
    window: int
    num_slots: int
    chunk_tokens: int  # most prompt tokens per step
    busy_chunk_tokens: int  # the same while any sequence decodes
    max_drafts: int


def sliding_pages(window: int, max_drafts: int, page_size: int) -> int:
    """Return the most sliding pages that a sequence holds at once, with up to two launched rounds.

    Prefill of one step needs its own pages in addition. A window begins within a page, and so does a chunk.
    """
    return -(-(window + 2 * (max_drafts + 1)) // page_size) + 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt positions start .. end - 1 of a sequence."""

    sequence: Sequence
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        return self.end == self.sequence.prompt_length


@dataclass(frozen=True, slots=True)
class SwapOut:
    sequence: Sequence
    full_pages: tuple[int, ...]
    sliding_pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SwapIn:
    """The pages to copy back; `num_sliding_left` leading pages had left the window at the swap-out."""

    sequence: Sequence
    full_pages: tuple[int, ...]
    sliding_pages: tuple[int, ...]
    num_sliding_left: int


@dataclass(kw_only=True, slots=True)
class StepPlan:
    """The work of a step, in order of execution. `page_updates` are sequences whose page tables changed."""

    swap_out: list[SwapOut] = field(default_factory=list)
    swap_in: list[SwapIn] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    page_updates: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)
    drafts: RoundDrafts = field(default_factory=RoundDrafts)

    @property
    def is_empty(self) -> bool:
        return not (self.swap_out or self.swap_in or self.chunks or self.decode)


class Scheduler:
    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.full = PagePool(config.num_full_pages)
        self.sliding = PagePool(config.num_sliding_pages)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival, swapped ones included
        self.num_preemptions = 0
        self._free_slots = list(range(config.num_slots - 1, -1, -1))
        self._arrivals = 0

    # -- events -------------------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        sequence.arrival = self._arrivals
        self._arrivals += 1
        sequence.phase = Phase.WAITING
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Release the slot and pages of a sequence in any phase."""
        if sequence.phase is Phase.DONE:
            return
        if sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        elif sequence.phase is not Phase.NEW:
            self.running.remove(sequence)
            self._release_pages(sequence)
            assert sequence.slot is not None
            self._free_slots.append(sequence.slot)
        sequence.slot, sequence.swapped, sequence.phase = None, None, Phase.DONE

    def unpublish(self, sequence: Sequence) -> None:
        """Remove the sequence's prompt pages from the prefix cache, also those that another sequence wrote."""
        for key in sequence.keys:
            self.full.unpublish(key)
            self.sliding.unpublish(key)

    def fits(self, max_length: int) -> bool:
        """Whether a sequence of that length can run at all, alone."""
        config, pages = self.config, -(-max_length // self.config.page_size)
        peak = sliding_pages(config.window, config.max_drafts, config.page_size)
        peak += -(-config.chunk_tokens // config.page_size)
        return pages <= config.num_full_pages and min(pages, peak) <= config.num_sliding_pages

    # -- planning -----------------------------------------------------------------------------------------------------

    def plan(self, drafts: RoundDrafts | None = None, pausing: Collection[Sequence] = ()) -> StepPlan:
        """Plan the next step and reserve its pages. Lengths advance as if it had run; `committed` corrects them.

        Sequences in `pausing` keep what they hold and are not decoded.
        """
        plan = StepPlan(drafts=drafts or RoundDrafts())
        for sequence in self.running:
            self._leave_window(sequence)
        for sequence in [s for s in self.running if s.phase is Phase.DECODE and s not in pausing]:
            if sequence.phase is Phase.DECODE:  # an earlier one may have preempted it
                self._plan_decode(sequence, plan)
        self._resume(plan)
        budget = self.config.busy_chunk_tokens if plan.decode else self.config.chunk_tokens
        least = budget // MAX_PROMPTS
        for sequence in [s for s in self.running if s.phase is Phase.PREFILL]:
            if budget > 0 and sequence.phase is Phase.PREFILL:
                budget -= max(self._plan_chunk(sequence, budget, plan), least)
        swapped = any(s.phase is Phase.SWAPPED for s in self.running)
        while budget > 0 and not swapped and self._admit(budget, plan):
            budget -= max(self._plan_chunk(self.running[-1], budget, plan), least)
        # A prompt may have preempted a later arrival; chunks are planned in order of arrival and stay.
        plan.decode = [s for s in plan.decode if s.phase is Phase.DECODE]
        for sequence in plan.decode:
            sequence.num_in_flight += plan.drafts.num_drafts + 1
        for chunk in plan.chunks:
            self._after_chunk(chunk)
        return plan

    def committed(self, sequence: Sequence, num_reserved: int, num_committed: int) -> None:
        """Note that a round which reserved `num_reserved` tokens committed `num_committed`."""
        sequence.known_length += num_committed
        sequence.num_in_flight -= num_reserved

    def _plan_decode(self, sequence: Sequence, plan: StepPlan) -> None:
        end = min(sequence.length_bound + plan.drafts.num_drafts, sequence.max_length)
        if self._reserve(sequence, end, plan):
            plan.decode.append(sequence)

    def _plan_chunk(self, sequence: Sequence, budget: int, plan: StepPlan) -> int:
        start = sequence.num_prefilled
        end = min(start + budget, sequence.prompt_length)
        if not self._reserve(sequence, end, plan):
            return budget
        plan.chunks.append(Chunk(sequence, start, end))
        return end - start

    def _after_chunk(self, chunk: Chunk) -> None:
        """Record a planned chunk: its full pages become findable, and after the last chunk decoding starts."""
        sequence, size = chunk.sequence, self.config.page_size
        sequence.num_prefilled = chunk.end
        for index in range(chunk.start // size, chunk.end // size):
            self.full.publish(sequence.full_pages[index], sequence.keys[index])
            self.sliding.publish(sequence.sliding_pages[index], sequence.keys[index])
        if chunk.is_last:
            sequence.phase = Phase.DECODE
            sequence.known_length, sequence.num_in_flight = sequence.prompt_length, 1

    def _admit(self, budget: int, plan: StepPlan) -> bool:
        if not self.waiting or not self._free_slots:
            return False
        sequence = self.waiting[0]
        leader = sequence.leader
        if leader is not None and leader.phase in (Phase.WAITING, Phase.PREFILL, Phase.SWAPPED):
            return False
        hit = self._longest_hit(sequence)
        needed = -(-sequence.prompt_length // self.config.page_size)
        idle = sum(self.full.is_idle(page) for page in hit[0])
        idle_sliding = sum(self.sliding.is_idle(page) for page in hit[1])
        missing = needed - len(hit[0])
        first_chunk = min(missing, -(-budget // self.config.page_size))
        if missing > self.full.num_available - idle or first_chunk > self.sliding.num_available - idle_sliding:
            return False
        self.waiting.popleft()
        sequence.slot = self._free_slots.pop()
        sequence.phase = Phase.PREFILL
        full, sliding = hit
        for page in full:
            self.full.hold(page)
        for page in sliding:
            if page:
                self.sliding.hold(page)
        sequence.full_pages, sequence.sliding_pages = list(full), list(sliding)
        sequence.num_sliding_left = sum(page == 0 for page in sliding)
        sequence.num_prefilled = sequence.num_cached = len(full) * self.config.page_size
        self.running.append(sequence)
        plan.admitted.append(sequence)
        return True

    def _longest_hit(self, sequence: Sequence) -> tuple[list[int], list[int]]:
        """Return shared pages for the longest usable prefix: full pages from 0, sliding pages for the last window.

        At least one prompt token is left to compute, for its logits.
        """
        size = self.config.page_size
        usable = [] if sequence.wants_prompt_logprobs else sequence.keys[: (sequence.prompt_length - 1) // size]
        full = []
        for key in usable:
            page = self.full.find(key)
            if page is None:
                break
            full.append(page)
        sequence.num_known_pages = len(full)
        for count in range(len(full), 0, -1):
            first = self._first_seen(count * size)
            sliding = [self.sliding.find(key) for key in usable[first:count]]
            if all(page is not None for page in sliding):
                return full[:count], [0] * first + [page for page in sliding if page is not None]
        return [], []

    # -- pages --------------------------------------------------------------------------------------------------------

    def _reserve(self, sequence: Sequence, end: int, plan: StepPlan) -> bool:
        """Reserve pages below position `end`, preempting later arrivals; False if the sequence itself was preempted."""
        count = -(-end // self.config.page_size)
        missing = count - len(sequence.full_pages)
        if missing <= 0:
            return True
        while self.full.num_available < missing or self.sliding.num_available < missing:
            victim = next((s for s in reversed(self.running) if s.phase in (Phase.PREFILL, Phase.DECODE)), sequence)
            self._swap_out(victim, plan)
            if victim is sequence:
                return False
        for _ in range(missing):
            sequence.full_pages.append(self.full.allocate())
            sequence.sliding_pages.append(self.sliding.allocate())
        self._touch(sequence, plan)
        return True

    def _first_seen(self, position: int) -> int:
        """Return the first sliding page that a row sees: its window has `window` keys, its own included."""
        return max(0, position - self.config.window + 1) // self.config.page_size

    def _leave_window(self, sequence: Sequence) -> None:
        """Release sliding pages that no row still to be computed can see."""
        if sequence.phase not in (Phase.PREFILL, Phase.DECODE):
            return
        is_prompt = sequence.phase is Phase.PREFILL
        gone = self._first_seen(sequence.num_prefilled if is_prompt else sequence.known_length - 1)
        for index in range(sequence.num_sliding_left, min(gone, len(sequence.sliding_pages))):
            self.sliding.release(sequence.sliding_pages[index], is_wanted=self._is_wanted(sequence, index))
            sequence.sliding_pages[index] = 0
            sequence.num_sliding_left = index + 1

    def _is_wanted(self, sequence: Sequence, index: int) -> bool:
        """Return whether a later prompt is likely to need this sliding page of a prompt.

        Prompts go on where one has gone on before, at the end of this one, and where it parts from an earlier one (as
        others will: the instructions end there). For those that part elsewhere there is a place every REENTRY_TOKENS.
        """
        size = self.config.page_size
        stride = -(-REENTRY_TOKENS // size)
        places = (sequence.prompt_length // size, sequence.num_known_pages, (index // stride + 1) * stride)
        is_hit = index < sequence.num_cached // size
        return is_hit or any(self._first_seen(place * size) <= index < place for place in places)

    def _release_pages(self, sequence: Sequence) -> None:
        for page in sequence.full_pages:
            self.full.release(page)
        for page in sequence.sliding_pages[sequence.num_sliding_left :]:
            self.sliding.release(page)
        sequence.full_pages, sequence.sliding_pages, sequence.num_sliding_left = [], [], 0

    def _swap_out(self, sequence: Sequence, plan: StepPlan) -> None:
        if sequence in plan.admitted:  # nothing computed yet: back to the queue
            plan.admitted.remove(sequence)
            self._unadmit(sequence)
            return
        left = sequence.num_sliding_left
        resumed = next((swap for swap in plan.swap_in if swap.sequence is sequence), None)
        if resumed is not None:  # resumed by this same plan: its copy in host memory is still whole
            plan.swap_in.remove(resumed)
            sequence.phase = Phase.SWAPPED
            self._release_pages(sequence)
            sequence.num_sliding_left = resumed.num_sliding_left
            return
        self.num_preemptions += 1
        plan.swap_out.append(SwapOut(sequence, tuple(sequence.full_pages), tuple(sequence.sliding_pages[left:])))
        sequence.resume_phase, sequence.phase = sequence.phase, Phase.SWAPPED
        self._release_pages(sequence)
        sequence.num_sliding_left = left

    def _unadmit(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release_pages(sequence)
        assert sequence.slot is not None
        self._free_slots.append(sequence.slot)
        sequence.slot, sequence.phase, sequence.num_prefilled, sequence.num_cached = None, Phase.WAITING, 0, 0
        self.waiting.appendleft(sequence)

    def _resume(self, plan: StepPlan) -> None:
        """Resume swapped sequences, earliest first, where their pages and one more round fit."""
        out_now = {swap.sequence for swap in plan.swap_out}
        for sequence in self.running:
            if sequence.phase is not Phase.SWAPPED or sequence in out_now:
                continue
            num_full, num_sliding = sequence.swapped.num_full, sequence.swapped.num_sliding
            margin = -(-(self.config.max_drafts + 1) // self.config.page_size) + 1
            alone = not any(s.phase in (Phase.PREFILL, Phase.DECODE) for s in self.running)
            margin = 0 if alone else margin
            if self.full.num_available < num_full + margin or self.sliding.num_available < num_sliding + margin:
                return
            sequence.full_pages = [self.full.allocate() for _ in range(num_full)]
            fresh = [self.sliding.allocate() for _ in range(num_sliding)]
            sequence.sliding_pages = [0] * sequence.num_sliding_left + fresh
            left = sequence.num_sliding_left
            plan.swap_in.append(SwapIn(sequence, tuple(sequence.full_pages), tuple(fresh), left))
            sequence.phase = sequence.resume_phase
            self._touch(sequence, plan)

    @staticmethod
    def _touch(sequence: Sequence, plan: StepPlan) -> None:
        if sequence not in plan.page_updates:
            plan.page_updates.append(sequence)

    # -- invariants ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that pages and slots are accounted for."""
        self.full.check()
        self.sliding.check()
        slots = [s.slot for s in self.running if s.slot is not None] + self._free_slots
        assert sorted(slots) == list(range(self.config.num_slots)), slots
        assert [s.arrival for s in self.running] == sorted(s.arrival for s in self.running)
        holders: Iterable[Sequence] = self.running
        assert {p for s in holders for p in s.full_pages} == set(self.full._holders)
        assert {p for s in holders for p in s.sliding_pages if p} == set(self.sliding._holders)
        for sequence in self.waiting:
            assert sequence.phase is Phase.WAITING and not sequence.full_pages and sequence.slot is None
