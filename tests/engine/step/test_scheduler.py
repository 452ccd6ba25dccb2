"""The scheduler against a device that plays memory: every row checks that the keys that it reads are those it should.

The device executes plans as the runner does, on dicts in place of tensors. A cell holds what its key depends on: the
prompt up to a position, or a sequence and a position. Rounds commit random numbers of tokens, end sequences, and are
reported up to one step late.
"""

from collections import deque
from itertools import count
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.round_drafts import RoundDrafts
from eyas.engine.sequences.pages import page_keys
from eyas.engine.sequences.sequence import Phase, Sequence
from eyas.engine.step.scheduler import Scheduler, SchedulerConfig, sliding_pages

MAX_LENGTH = 30
SHARED = tuple(range(100, 100 + MAX_LENGTH))


class Swapped(NamedTuple):
    cells: tuple[list[dict], list[dict]]
    num_full: int
    num_sliding: int


class Device:
    """Two groups of pages, full and sliding, the page tables as last sent, and the true length of every sequence."""

    def __init__(self, config):
        self.config = config
        self.pages = tuple(
            {page: {} for page in range(1, num + 1)} for num in (config.num_full_pages, config.num_sliding_pages)
        )
        self.tables = {}
        self.length = {}
        self.writer = {}

    def run(self, plan, draw):
        """[(sequence, tokens reserved, tokens committed, ended)] of a step; `draw(low, high)` is its chance."""
        self.writer = {}
        for swap in plan.swap_out:
            ids = (swap.full_pages, swap.sliding_pages)
            cells = tuple([dict(pages[i]) for i in held] for pages, held in zip(self.pages, ids, strict=True))
            swap.sequence.swapped = Swapped(cells, len(swap.full_pages), len(swap.sliding_pages))
        for swap in plan.swap_in:
            ids = (swap.full_pages, swap.sliding_pages)
            for pages, held, cells in zip(self.pages, ids, swap.sequence.swapped.cells, strict=True):
                pages.update(zip(held, (dict(cell) for cell in cells), strict=True))
            swap.sequence.swapped = None
        for sequence in plan.admitted:
            self.length[sequence] = sequence.prompt_length
        for sequence in plan.admitted + [s for s in plan.page_updates if s.slot is not None]:
            self.tables[sequence] = (list(sequence.full_pages), list(sequence.sliding_pages))
        results = [self._round(sequence, plan.drafts.num_drafts, draw) for sequence in plan.decode]
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.end):
                self._row(chunk.sequence, position, truth(chunk.sequence, position))
            if chunk.is_last:
                results.append(self._commit(chunk.sequence, 1, 1, draw))
        return results

    def _round(self, sequence, num_drafts, draw):
        length = self.length[sequence]
        remaining = sequence.max_length - length
        if not remaining or sequence.ended_on_device:
            return sequence, num_drafts + 1, 0, False
        num_valid = min(num_drafts, remaining - 1)
        num_committed = 1 + draw(0, num_valid)
        for row in range(num_valid + 1):
            accepted = row < num_committed
            self._row(sequence, length - 1 + row, truth(sequence, length - 1 + row) if accepted else "rejected")
        return self._commit(sequence, num_drafts + 1, num_committed, draw)

    def _commit(self, sequence, num_reserved, num_committed, draw):
        self.length[sequence] += num_committed
        ended = self.length[sequence] == sequence.max_length or draw(0, 15) == 0
        sequence.ended_on_device = ended
        return sequence, num_reserved, num_committed, ended

    def _row(self, sequence, position, content):
        """Write the row's key, then read all that it attends to."""
        size, window = self.config.page_size, self.config.window
        for group, (pages, table) in enumerate(zip(self.pages, self.tables[sequence], strict=True)):
            page = table[position // size]
            assert self.writer.setdefault((group, page), sequence) is sequence, "two writers of a page"
            pages[page][position % size] = content
            for key in range(0 if group == 0 else max(0, position - window + 1), position):
                found = pages[table[key // size]].get(key % size)
                assert found in (truth(sequence, key), "rejected"), f"position {position} reads {found} at {key}"
                assert found != "rejected" or content == "rejected"


def truth(sequence, position):
    if position < sequence.prompt_length:
        return sequence.request.prompt_ids[: position + 1]
    return sequence.request.request_id, sequence.choice, position


class Tracked(Sequence):
    ended_on_device = False


class SchedulerMachine(RuleBasedStateMachine):
    names = count()

    @initialize(data=st.data())
    def start(self, data):
        def pick(low, high):
            return data.draw(st.integers(low, high))

        size, window, chunk, max_drafts, num_slots = pick(1, 4), pick(1, 9), pick(1, 12), pick(0, 3), pick(1, 4)
        least, self.is_roomy = -(-MAX_LENGTH // size), pick(0, 1)
        own = sliding_pages(window, max_drafts, size)
        self.config = SchedulerConfig(
            tile=pick(1, 4),
            page_size=size,
            window=window,
            chunk_tokens=chunk,
            busy_chunk_tokens=pick(1, chunk),
            max_drafts=max_drafts,
            gather_from=pick(1, 4),
            num_full_pages=num_slots * least if self.is_roomy else least + pick(0, 8),
            num_sliding_pages=own * num_slots + -(-chunk // size)
            if self.is_roomy
            else min(least, own + -(-chunk // size)) + pick(0, 8),
            num_slots=num_slots,
        )
        self.lag = pick(0, 1)
        self.scheduler = Scheduler(self.config)
        self.device = Device(self.config)
        self.launched = deque()
        self.live = []

    @rule(
        num_shared=st.integers(0, 20),
        num_own=st.integers(0, 8),
        own=st.integers(0, 2),
        budget=st.integers(1, 10),
        n=st.sampled_from((1, 1, 1, 3)),
    )
    def submit(self, num_shared, num_own, own, budget, n):
        prompt = (SHARED[:num_shared] + (own,) * num_own) or (own,)
        budget = min(budget, MAX_LENGTH - len(prompt))
        assert self.scheduler.fits(len(prompt) + budget)
        request = Request(request_id=str(next(self.names)), prompt_ids=prompt, params=SamplingParams(n=n))
        choices = []
        for choice in range(n):
            sequence = Tracked(
                request=request,
                choice=choice,
                seed=0,
                budget=budget,
                stop_ids=(),
                keys=page_keys(prompt, self.config.page_size),
                deliver=print,
                leader=choices[0] if choices else None,
            )
            choices.append(sequence)
            self.scheduler.add(sequence)
        self.live += choices

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data):
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        self.scheduler.finish(sequence)

    @rule(num_drafts=st.integers(0, 3), rng=st.randoms(use_true_random=False))
    def step(self, num_drafts, rng):
        self._step(min(num_drafts, self.config.max_drafts), rng.randint)

    @rule(rng=st.randoms(use_true_random=False), num_steps=st.integers(5, 15))
    def steps(self, rng, num_steps):
        for _ in range(num_steps):
            self._step(rng.randint(0, self.config.max_drafts), rng.randint)

    def _step(self, num_drafts, draw):
        num_prompts = sum(sequence.phase is Phase.PREFILL for sequence in self.scheduler.running)
        num_prompts += len(self.scheduler.waiting)
        plan = self.scheduler.plan(RoundDrafts(num_drafts=num_drafts))
        self._check(plan, num_prompts)
        if not plan.is_empty:
            self.launched.append(self.device.run(plan, draw))
        if self.launched and (plan.is_empty or len(self.launched) > self.lag):
            for sequence, reserved, committed, ended in self.launched.popleft():
                if sequence.phase is not Phase.DONE:
                    self.scheduler.committed(sequence, reserved, committed)
                    assert sequence.length_bound >= self.device.length[sequence]
                    if ended:
                        self.scheduler.finish(sequence)
                        self.live.remove(sequence)

    def _check(self, plan, num_prompts):
        limit = self.config.busy_chunk_tokens if len(plan.decode) > num_prompts else self.config.chunk_tokens
        assert sum(chunk.end - chunk.start for chunk in plan.chunks) <= limit
        read = [chunk.sequence for chunk in plan.chunks]
        prompts = [s for s in self.scheduler.running if s.phase is Phase.PREFILL or s in read]
        assert not read or read[0] is prompts[0], "a prompt waits for a later one"
        assert all(chunk.start < chunk.end for chunk in plan.chunks)
        rows = [chunk.sequence for chunk in plan.chunks] + plan.decode
        assert len(set(rows)) == len(rows)
        assert not {swap.sequence for swap in plan.swap_out} & set(rows)
        for sequences in (self.scheduler.running, self.scheduler.waiting, [chunk.sequence for chunk in plan.chunks]):
            arrivals = [sequence.arrival for sequence in sequences]
            assert arrivals == sorted(arrivals)

    @invariant()
    def accounted_for(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            assert not (self.is_roomy and self.scheduler.num_preemptions), "room for all, and one had to go"

    def teardown(self):
        """Without new arrivals everything ends: no deadlock, no page left."""
        if not hasattr(self, "scheduler"):
            return
        todo = sum(sequence.max_length for sequence in self.live)
        for _ in range(4 * todo + 10):
            self._step(self.config.max_drafts, lambda low, high: high)
            if not self.live and not self.launched:
                break
        assert not self.live and not self.launched
        self.scheduler.check()
        assert self.scheduler.full.num_held == self.scheduler.sliding.num_held == 0
        assert not self.scheduler.running and not self.scheduler.waiting


class Prompts:
    """Prompts one after the other through a sliding group of 8 tokens beyond those in use."""

    def __init__(self, **fields):
        settings = dict(
            page_size=1, window=3, chunk_tokens=4, busy_chunk_tokens=4, max_drafts=0, tile=1,
            num_full_pages=200, num_sliding_pages=sliding_pages(3, 0, 1) + 4 + 8, num_slots=1,
        )  # fmt: skip
        self.page_size = fields.get("page_size", 1)
        self.scheduler = Scheduler(SchedulerConfig(**settings | fields))

    def num_cached(self, name, prompt):
        sequence = Sequence(
            request=Request(request_id=name, prompt_ids=tuple(prompt), params=SamplingParams()),
            choice=0, seed=0, budget=1, stop_ids=(), keys=page_keys(prompt, self.page_size), deliver=print,
        )  # fmt: skip
        self.scheduler.add(sequence)
        while sequence.phase is not Phase.DECODE:
            self.scheduler.plan()
        self.scheduler.plan()
        self.scheduler.finish(sequence)
        return sequence.num_cached


def test_the_end_of_a_prompt_and_a_shared_part_outlast_a_long_one():
    num_cached = Prompts().num_cached
    shared, talk = range(6), [0, 1, 2, 3, 4, 5, *range(40, 46)]
    assert num_cached("first", [*shared, 90, 91]) == 0
    assert num_cached("second", talk) == 6
    assert num_cached("long", range(100, 125)) == 0
    assert num_cached("the talk goes on", [*talk, 50]) == len(talk)
    assert num_cached("the shared part again", [*shared, 92]) == 6


def test_where_two_long_prompts_part_a_third_is_read_on():
    """Of the first nothing is left there when the second comes; what that one passes is kept for the third."""
    num_cached = Prompts().num_cached
    shared = range(30)
    assert num_cached("first", [*shared, *range(100, 130)]) == 0
    assert num_cached("second", [*shared, *range(200, 230)]) == 0
    assert num_cached("long", range(300, 340)) == 0
    assert num_cached("third", [*shared, *range(400, 430)]) == 30
    assert num_cached("fourth", [*shared, *range(500, 530)]) == 30


def test_the_beginning_of_a_long_prompt_is_read_on_from_the_nearest_place_before():
    """A prompt of 20,000 tokens passes through a sliding group of some 5,000."""
    num_cached = Prompts(
        page_size=16, window=128, chunk_tokens=1024, num_full_pages=4000, num_sliding_pages=320
    ).num_cached
    assert num_cached("first", range(20_000)) == 0
    for number, shared in enumerate((12_345, 5000, 9000), 1):
        prompt = [*range(shared), *range(number * 100_000, number * 100_000 + 500)]
        assert num_cached(f"shares {shared}", prompt) == shared // 2048 * 2048


def prompt_of(name, length):
    prompt = tuple((name, position) for position in range(length))
    return Sequence(
        request=Request(request_id=str(name), prompt_ids=tuple(range(length))), choice=0, seed=0, budget=8,
        stop_ids=(), keys=prompt[15::16], deliver=print,
    )  # fmt: skip


def waiting_prompts(lengths, **changes):
    """Return a scheduler in whose queue prompts of these lengths wait, and its sequences."""
    config = {
        "page_size": 16, "window": 128, "num_full_pages": 9000, "num_sliding_pages": 9000, "num_slots": 64,
        "chunk_tokens": 8192, "busy_chunk_tokens": 2048, "max_drafts": 0,
    }  # fmt: skip
    scheduler = Scheduler(SchedulerConfig(**config | changes))
    sequences = [prompt_of(name, length) for name, length in enumerate(lengths)]
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler, sequences


def lengths_of(plan):
    return [chunk.end - chunk.start for chunk in plan.chunks]


def test_a_step_reads_as_many_prompts_as_fit():
    scheduler, sequences = waiting_prompts(64 * [128])
    plan = scheduler.plan()
    assert [chunk.sequence for chunk in plan.chunks] == sequences
    assert all(chunk.is_last and chunk.start == 0 for chunk in plan.chunks)
    assert len(scheduler.plan().decode) == 64


def test_prompts_fill_tiles_not_tokens():
    """Those of 100 tokens take two tiles of 64 rows each."""
    scheduler, _ = waiting_prompts(64 * [100], chunk_tokens=1024, busy_chunk_tokens=1024)
    assert [lengths_of(scheduler.plan()) for _ in range(8)] == 8 * [8 * [100]]


def test_short_prompts_beside_a_long_one_wait_for_one_chunk_at_most():
    scheduler, (long, *short) = waiting_prompts([32_000, 500, 500])
    first, second = scheduler.plan(), scheduler.plan()
    assert [chunk.sequence for chunk in first.chunks] == [long, *short]
    assert lengths_of(first) == [8192 - 2 * 512, 500, 500]
    assert second.decode == short and [chunk.sequence for chunk in second.chunks] == [long]


def test_a_long_prompt_keeps_three_quarters_of_each_step():
    scheduler, (long, *_) = waiting_prompts([32_000, *60 * [512]], busy_chunk_tokens=8192)
    num_steps = 0
    while long.phase is not Phase.DECODE:
        plan = scheduler.plan()
        num_steps += 1
        assert lengths_of(plan)[0] >= 6144 or plan.chunks[0].is_last
    assert num_steps <= 6


def test_chunks_are_small_while_more_decode_than_wait():
    scheduler, _ = waiting_prompts([64, 64, 64])
    assert lengths_of(scheduler.plan()) == [64, 64, 64]
    for name in ("a", "b", "c", "d"):
        scheduler.add(prompt_of(name, 4096))
    assert lengths_of(scheduler.plan()) == [4096, 4096]
    assert lengths_of(scheduler.plan()) == [2048] and lengths_of(scheduler.plan()) == [2048]


def test_chunks_grow_with_the_answers_beside_them():
    scheduler, _ = waiting_prompts(256 * [64], num_slots=300, num_full_pages=20_000, num_sliding_pages=20_000)
    assert [len(scheduler.plan().chunks) for _ in range(5)] == [128, 32, 32, 32, 32]
    scheduler.add(prompt_of("a", 9000))
    assert [lengths_of(scheduler.plan()) for _ in range(3)] == [[4096], [4096], [9000 - 2 * 4096]]


def test_beside_many_answers_prompts_wait_up_to_two_rounds_for_others():
    scheduler, _ = waiting_prompts(40 * [64], gather_from=32)
    scheduler.plan()
    scheduler.add(prompt_of("a", 64))
    assert [lengths_of(scheduler.plan()) for _ in range(3)] == [[], [], [64]]
    scheduler.add(prompt_of("b", 64))
    assert lengths_of(scheduler.plan()) == []
    scheduler.add(prompt_of("c", 1984))
    assert lengths_of(scheduler.plan()) == [64, 1984]  # as many as a step reads
    assert len(scheduler.plan().decode) == 43
    scheduler.add(prompt_of("long", 5000))
    assert [lengths_of(scheduler.plan()) for _ in range(3)] == [[2048], [2048], [904]]


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
