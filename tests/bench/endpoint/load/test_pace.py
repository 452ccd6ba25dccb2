"""When requests begin: pure, so that any server can be played through."""

import heapq
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.bench.endpoint.load.pace import MAX_RUNNING, PAUSE_S, Limits, Pace
from eyas.bench.endpoint.records import Load


def play(pace, length_of, *, chunk_s=0.05, until=300.0, fails=lambda number: False):
    """Run a server whose `number`th answer takes length_of(number) seconds; return (ticket, begun, ended) of each."""
    events, now, done = [], 0.0, []
    while not pace.is_over and now < until:
        for ticket in pace.due(now):
            heapq.heappush(events, (now + length_of(ticket.number), ticket.number, ticket, now))
        if pace.is_over:
            break
        wanted = pace.next_s(now)
        end = min(wanted, events[0][0] if events else math.inf)
        assert end < math.inf, "nothing would ever happen again"
        for _ in range(round(pace.num_running * (end - now) / chunk_s)):
            pace.chunk()
        now = max(now, end)
        while events and events[0][0] <= now:
            at, number, ticket, begun = heapq.heappop(events)
            pace.ended(ticket, at, has_failed=fails(number))
            done.append((ticket, begun, at))
    return done


LENGTHS = st.lists(st.floats(0.05, 3.0), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), LENGTHS, st.integers(1, 40), st.sampled_from([0.0, 5.0]))
def test_a_closed_loop_is_always_full(concurrency, lengths, num_requests, warm_up_s):
    limits = Limits(warm_up_s=warm_up_s, num_requests=num_requests)
    pace = Pace(Load(concurrency=concurrency), limits, start_s=0.0, seed=0)
    done = play(pace, lambda number: lengths[number % len(lengths)])
    measured = [(ticket, begun, ended) for ticket, begun, ended in done if ticket.is_measured]
    assert pace.is_over and not pace.failure and len(measured) == max(num_requests, concurrency)
    numbers = sorted(ticket.number for ticket, _, _ in measured)
    assert numbers == list(range(numbers[0], numbers[-1] + 1))  # the first ones due, however long they take
    assert all(pace.started_s <= begun <= pace.ended_s for _, begun, _ in measured)
    last = max(ended for _, _, ended in measured)
    for _, begun, _ in done:  # whenever one begins, all places are taken, the one just filled among them
        if 0.0 < begun < last:
            running = sum(other <= begun < ended for _, other, ended in done)
            assert running + (pace.num_running if begun >= pace.ended_s else 0) >= concurrency


@settings(max_examples=60, deadline=None)
@given(st.floats(0.5, 30.0), LENGTHS, st.integers(0, 5))
def test_an_open_loop_heeds_no_answer(rate, lengths, seed):
    """The times at which requests are due are the same for any server."""

    def schedule(length_of):
        pace = Pace(Load(rate=rate), Limits(warm_up_s=0, num_requests=30), start_s=0.0, seed=seed)
        done = play(pace, length_of)
        assert pace.is_over and not pace.failure
        return sorted(ticket.scheduled_s for ticket, _, _ in done if ticket.is_measured)

    assert schedule(lambda number: lengths[number % len(lengths)]) == schedule(lambda number: 0.01)


def test_gaps_of_an_open_loop_are_exponential():
    pace = Pace(Load(rate=10.0), Limits(warm_up_s=0, duration_s=400.0), start_s=0.0, seed=3)
    due = sorted(ticket.scheduled_s for ticket, _, _ in play(pace, lambda number: 0.01, until=500.0))
    gaps = [b - a for a, b in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.05) and variance == pytest.approx(mean**2, rel=0.1)


def test_a_server_that_does_not_keep_up_ends_an_open_loop():
    pace = Pace(Load(rate=1000.0), Limits(warm_up_s=0, duration_s=60.0), start_s=0.0, seed=0)
    play(pace, lambda number: 100.0)
    assert f"more than {MAX_RUNNING:,} requests at once" in pace.failure


def test_the_warm_up_waits_for_a_speed_that_lasts():
    """Chunks come half as fast again in each second, for six seconds: the steady part begins after that."""
    pace = Pace(Load(concurrency=2), Limits(warm_up_s=60.0, num_requests=4), start_s=0.0, seed=0)
    now = 0.0
    pace.due(now)
    while pace.phase == "warm-up":
        now += 1.0
        for _ in range(round(100 * 1.5 ** min(now, 6))):
            pace.chunk()
        pace.due(now)
    assert pace.is_warm and pace.started_s == 7.0


def test_a_warm_up_that_never_agrees_ends_by_the_clock_and_says_so():
    pace = Pace(Load(concurrency=1), Limits(warm_up_s=3.0, num_requests=1), start_s=0.0, seed=0)
    play(pace, lambda number: 0.5, chunk_s=10.0)
    assert not pace.is_warm and 3.0 <= pace.started_s < 4.0


def test_a_failed_place_rests_before_it_is_filled_again():
    pace = Pace(Load(concurrency=1), Limits(warm_up_s=0, num_requests=8), start_s=0.0, seed=0)
    done = play(pace, lambda number: 0.01, fails=lambda number: number % 2 == 0)
    begun = [at for _, at, _ in done]
    assert begun[1] - done[0][2] == pytest.approx(PAUSE_S) and begun[2] == done[1][2]


def test_a_duration_lasts_until_each_place_has_had_a_request():
    pace = Pace(Load(concurrency=2), Limits(warm_up_s=0.5, duration_s=1.0), start_s=0.0, seed=0)
    done = play(pace, lambda number: 5.0, chunk_s=100.0)
    assert sum(ticket.is_measured for ticket, _, _ in done) == 2 and pace.ended_s - pace.started_s > 4.0
