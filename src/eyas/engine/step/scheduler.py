"""Schedules steps: takes sequences and page counts, returns a StepPlan. Pure host logic, no tensors and no clock.

Sequences run in order of arrival. Each step decodes every running sequence and reads as many prompts as fit its budget
of rows. The budget is small while more sequences decode than prompts wait, since all of them wait for the prompts of a
step. When pages run out, the latest arrival is preempted: its pages are copied to host memory and back, never
recomputed.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from eyas.engine.draft_length.round_drafts import RoundDrafts
from eyas.engine.sequences.pages import PagePool
from eyas.engine.sequences.sequence import Phase, Sequence
from eyas.kernels.reference.layers.roles import PROMPT_TILE

__all__ = ["Chunk", "Scheduler", "SchedulerConfig", "StepPlan", "SwapIn", "SwapOut", "max_tiles"]

REENTRY_TOKENS = 2048  # of a shared beginning no more are computed again where prompts part for the first time
GATHER_FROM, GATHER_ROUNDS = 96, 2  # decoding sequences beside which prompts wait for others, and for how long
BUSY_SEQUENCES = 128  # beside twice as many decoding sequences a step has twice as many prompt rows
SHORT_SHARE = 4  # beside a prompt that takes several steps, short ones behind it get a quarter of a step
PREFILL, DECODE, SWAPPED = Phase.PREFILL, Phase.DECODE, Phase.SWAPPED  # slow to look up in an enumeration
MAX_PASSED = 16  # prompts in the queue that short ones may pass in a step


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    page_size: int
    num_full_pages: int
    num_sliding_pages: int
    window: int
    num_slots: int
    chunk_tokens: int  # most prompt rows per step, see `max_tiles`
    busy_chunk_tokens: int  # the same while more sequences decode than prompts wait, for each BUSY_SEQUENCES of them
    max_drafts: int
    max_rows: int | None = None  # rows that a round can have (`draft_length.round_limit`), None: no limit
    gather_from: int = GATHER_FROM  # decoding sequences beside which prompts wait for others
    tile: int = PROMPT_TILE  # rows of the grid on which prompts lie: a chunk takes whole tiles of it


def sliding_pages(window: int, max_drafts: int, page_size: int) -> int:
    """Return the most sliding pages that a sequence holds at once, with up to two launched rounds.

    Prefill of one step needs its own pages in addition. A window begins within a page, and so does a chunk.
    """
    return -(-(window + 2 * (max_drafts + 1)) // page_size) + 2


def max_tiles(chunk_tokens: int) -> int:
    """Return the most tiles of a step's prompt rows: a prompt longer than a step may begin and end within one."""
    return -(-chunk_tokens // PROMPT_TILE) + 1


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
    def num_prompt_tokens(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.chunks)

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
        self._num_gathered = 0  # rounds that the prompts in the queue have waited for others
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

    def plan(
        self,
        drafts: RoundDrafts | None = None,
        pausing: Collection[Sequence] = (),
        *,
        prompt_rows: int | None = None,
    ) -> StepPlan:
        """Plan the next step and reserve its pages. Lengths advance as if it had run; `committed` corrects them.

        Sequences in `pausing` keep what they hold and are not decoded. `prompt_rows` bounds those beside the ones that
        are; with 0 no prompt is read.
        """
        plan = StepPlan(drafts=drafts or RoundDrafts())
        for sequence in self.running:
            self._leave_window(sequence)
        num_drafts, page_size = plan.drafts.num_drafts, self.config.page_size
        for sequence in [s for s in self.running if s.phase is DECODE and s not in pausing]:
            if sequence.phase is DECODE:  # an earlier one may have preempted it
                end = min(sequence.known_length + sequence.num_in_flight + num_drafts, sequence.max_length)
                if end <= len(sequence.full_pages) * page_size or self._reserve(sequence, end, plan):
                    plan.decode.append(sequence)
        self._resume(plan)
        budget = self._budget(plan, prompt_rows)
        for sequence, num_tokens in [] if not budget or self._gathers(plan, budget) else self._share_out(plan, budget):
            if sequence.phase is PREFILL:  # an earlier one may have preempted it
                self._plan_chunk(sequence, num_tokens, plan)
        # A prompt may have preempted a later arrival; chunks are planned in order of arrival and stay.
        plan.decode = [s for s in plan.decode if s.phase is DECODE]
        for sequence in plan.decode:
            sequence.num_in_flight += num_drafts + 1
        for chunk in plan.chunks:
            self._after_chunk(chunk)
        return plan

    def committed(self, sequence: Sequence, num_reserved: int, num_committed: int) -> None:
        """Note that a round which reserved `num_reserved` tokens committed `num_committed`."""
        sequence.known_length += num_committed
        sequence.num_in_flight -= num_reserved

    def _plan_chunk(self, sequence: Sequence, num_tokens: int, plan: StepPlan) -> None:
        start = sequence.num_prefilled
        end = min(start + num_tokens, sequence.prompt_length)
        if self._reserve(sequence, end, plan):
            plan.chunks.append(Chunk(sequence, start, end))

    def _budget(self, plan: StepPlan, prompt_rows: int | None) -> int:
        """Return the prompt rows of a step."""
        if plan.decode and prompt_rows is not None:
            return min(prompt_rows, self.config.chunk_tokens)
        num_prompts = sum(s.phase is PREFILL for s in self.running)
        num_prompts += min(len(self.waiting), len(self._free_slots))
        is_busy = plan.decode and len(plan.decode) >= num_prompts
        if not is_busy:
            return self.config.chunk_tokens
        share = max(1, len(plan.decode) // BUSY_SEQUENCES)
        return min(self.config.busy_chunk_tokens * share, self.config.chunk_tokens)

    def _gathers(self, plan: StepPlan, budget: int) -> bool:
        """Return whether prompts wait for more: a pass takes most of its time to read weights, and all answers wait.

        With A answers of N tokens each, A / N prompts come a round: a round's wait pays where A > sqrt(N round / pass).
        """
        is_alone = not self.waiting or len(plan.decode) < self.config.gather_from
        if is_alone or any(sequence.phase is PREFILL for sequence in self.running):
            self._num_gathered = 0
            return False
        first = islice(self.waiting, max(1, budget // self.config.tile))
        is_full = sum(self._rows(0, sequence) for sequence in first) >= budget
        is_over = is_full or self._num_gathered == GATHER_ROUNDS
        self._num_gathered = 0 if is_over else self._num_gathered + 1
        return not is_over

    def _share_out(self, plan: StepPlan, left: int) -> list[tuple[Sequence, int]]:
        """Admit prompts, and return which of all the `left` rows of a step are for, in order of arrival, and how many.

        They are taken whole in order of arrival until one does not fit: it gets the rest of the step, less up to a
        quarter for prompts behind it that fit in there whole. It never waits for what those hold: slots and pages of
        prompts that are passed stay free for them, and where one has to wait for memory, all behind it do.
        """
        for_short = left // SHORT_SHARE
        room = _Room(self)
        shares: dict[Sequence, int] = {}
        long: Sequence | None = None
        candidates = [s for s in self.running if s.phase is PREFILL]
        if not any(s.phase is SWAPPED for s in self.running):
            candidates += islice(self.waiting, MAX_PASSED + len(self._free_slots))
        for sequence in candidates:
            if shares and (left if long is None else for_short) < self.config.tile:
                break
            hit: tuple[list[int], list[int]] | None = None
            if sequence.phase is Phase.WAITING:
                if not room.has_slot:
                    break
                hit = self._longest_hit(sequence)
                if not room.has_pages(sequence, hit, left):
                    break
            start = sequence.num_prefilled if hit is None else len(hit[0]) * self.config.page_size
            rows, is_passed = self._rows(start, sequence), sequence.awaits_leader
            if not is_passed and rows <= (left if long is None else for_short):
                shares[sequence] = rows
                left -= rows
                for_short -= 0 if long is None else rows
            elif not is_passed and long is None:
                long, for_short = sequence, min(for_short, left // 2)
            else:
                is_passed = True
            if hit is not None:
                if is_passed:
                    room.keep_slot()
                else:
                    self._admit(sequence, hit, plan)
            room.promise(sequence, 0 if is_passed else shares.get(sequence, left))
        if long is not None:
            shares[long] = left
        return sorted(shares.items(), key=lambda item: item[0].arrival)

    def _rows(self, start: int, sequence: Sequence) -> int:
        """Return the rows of a prompt from `start` to its end, in whole tiles."""
        tile = self.config.tile
        return (-(-sequence.prompt_length // tile) - start // tile) * tile

    def _after_chunk(self, chunk: Chunk) -> None:
        """Record a planned chunk: its full pages become findable, and after the last chunk decoding starts."""
        sequence, size = chunk.sequence, self.config.page_size
        sequence.num_prefilled = chunk.end
        for index in range(chunk.start // size, chunk.end // size):
            self.full.publish(sequence.full_pages[index], sequence.keys[index])
            self.sliding.publish(sequence.sliding_pages[index], sequence.keys[index])
        if chunk.is_last:
            sequence.phase = DECODE
            sequence.known_length, sequence.num_in_flight = sequence.prompt_length, 1

    def _admit(self, sequence: Sequence, hit: tuple[list[int], list[int]], plan: StepPlan) -> None:
        self.waiting.remove(sequence)
        sequence.slot = self._free_slots.pop()
        sequence.phase = PREFILL
        full, sliding = hit
        for page in full:
            self.full.hold(page)
        for page in sliding:
            if page:
                self.sliding.hold(page)
        sequence.full_pages, sequence.sliding_pages = list(full), list(sliding)
        sequence.num_sliding_left = sum(page == 0 for page in sliding)
        sequence.num_prefilled = sequence.num_cached = len(full) * self.config.page_size
        insort(self.running, sequence, key=attrgetter("arrival"))
        plan.admitted.append(sequence)

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
            victim = next((s for s in reversed(self.running) if s.phase in (PREFILL, DECODE)), sequence)
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
        phase = sequence.phase
        if phase is not DECODE and phase is not PREFILL:
            return
        next_row = sequence.known_length - 1 if phase is DECODE else sequence.num_prefilled
        config = self.config
        if next_row < (sequence.num_sliding_left + 1) * config.page_size + config.window - 1:
            return  # as nearly always
        gone = self._first_seen(next_row)
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
            sequence.phase = SWAPPED
            self._release_pages(sequence)
            sequence.num_sliding_left = resumed.num_sliding_left
            return
        self.num_preemptions += 1
        plan.swap_out.append(SwapOut(sequence, tuple(sequence.full_pages), tuple(sequence.sliding_pages[left:])))
        sequence.resume_phase, sequence.phase = sequence.phase, SWAPPED
        self._release_pages(sequence)
        sequence.num_sliding_left = left

    def _unadmit(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release_pages(sequence)
        assert sequence.slot is not None
        self._free_slots.append(sequence.slot)
        sequence.slot, sequence.phase, sequence.num_prefilled, sequence.num_cached = None, Phase.WAITING, 0, 0
        insort(self.waiting, sequence, key=attrgetter("arrival"))

    def _resume(self, plan: StepPlan) -> None:
        """Resume swapped sequences, earliest first, where their pages and one more round fit."""
        out_now = {swap.sequence for swap in plan.swap_out}
        for sequence in self.running:
            if sequence.phase is not SWAPPED or sequence in out_now:
                continue
            num_full, num_sliding = sequence.swapped.num_full, sequence.swapped.num_sliding
            margin = -(-(self.config.max_drafts + 1) // self.config.page_size) + 1
            alone = not any(s.phase in (PREFILL, DECODE) for s in self.running)
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
        # Only a sequence that is resumed can get further pages in the same step.
        if not plan.swap_in or sequence not in plan.page_updates:
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


class _Room:
    """Slots and pages that new prompts of a step may take: those that no earlier prompt is still to get."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._num_slots_kept = self._num_full = self._num_sliding = 0

    @property
    def has_slot(self) -> bool:
        return len(self._scheduler._free_slots) > self._num_slots_kept

    def has_pages(self, sequence: Sequence, hit: tuple[list[int], list[int]], num_tokens: int) -> bool:
        """Return whether there are pages for a prompt, and sliding ones for its first `num_tokens` beyond a hit."""
        full, sliding = self._scheduler.full, self._scheduler.sliding
        num_full, num_sliding = self._missing(sequence, len(hit[0]), num_tokens)
        num_full += sum(full.is_idle(page) for page in hit[0])
        num_sliding += sum(sliding.is_idle(page) for page in hit[1])
        return (
            self._num_full + num_full <= full.num_available and self._num_sliding + num_sliding <= sliding.num_available
        )

    def keep_slot(self) -> None:
        """Leave a slot to a prompt that is passed."""
        self._num_slots_kept += 1

    def promise(self, sequence: Sequence, num_tokens: int) -> None:
        """Leave to a prompt the pages that it lacks, and sliding ones for `num_tokens`."""
        num_full, num_sliding = self._missing(sequence, len(sequence.full_pages), num_tokens)
        self._num_full += num_full
        self._num_sliding += num_sliding

    def _missing(self, sequence: Sequence, num_held: int, num_tokens: int) -> tuple[int, int]:
        size = self._scheduler.config.page_size
        missing = max(0, -(-sequence.prompt_length // size) - num_held)
        return missing, min(missing, -(-num_tokens // size))
