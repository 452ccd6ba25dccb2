"""The budgets as a pure machine: each is spent when the time that it counted is up, and never before."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.serving.budgets import Budgets
from eyas.base.serving.waiting import Waiting
from eyas.client.clock import Clock
from eyas.client.errors import Stalled

BUDGETS = Budgets(queue_s=10, prefill_s=20, stall_s=30, total_s=None)
STATES = {"queued": "queue", "loading": "loading", "reading": "prefill"}
STEPS = st.lists(
    st.tuples(st.sampled_from(["queued", "loading", "reading", "pause", "load", "sent"]), st.floats(0, 12)), max_size=20
)


def clock_of(budgets=BUDGETS, began=0.0, load_s=40.0):
    return Clock(budgets, began, began=began, load_s=load_s)


def has_room(clock, seconds, now=45.0):
    return clock.has_room(Waiting(state="queued", eta_s=seconds), now)


@given(STEPS, st.one_of(st.none(), st.floats(1, 100)))
def test_time_is_charged_to_what_the_server_says(steps, total_s):
    """An oracle that sums the seconds of each state, and the clock, agree on which budget ends and when."""
    clock = clock_of(Budgets(queue_s=10, prefill_s=20, stall_s=30, total_s=total_s))
    clock.sent(0.0)
    limits = {"queue": 10, "loading": 40, "prefill": 20}
    spent = dict.fromkeys(limits, 0.0)
    span, heard, now, silent = "prefill", 0.0, 0.0, True
    unheard = 0.0  # seconds of the try in which the server has said nothing yet
    for state, seconds in [*steps, ("sent", 0.0)]:
        left = {"total": math.inf if total_s is None else total_s - now, span: limits[span] - spent[span]}
        if span == "loading":
            left["silence"] = heard + 20 - now
        due = now + min(left.values())
        assert clock.due == pytest.approx(due)
        if now + seconds >= due - 1e-3:
            error = clock.error(max(clock.due, due), "e")
            first = min(left, key=left.get)
            if sorted(left.values())[:2][-1] - left[first] > 1e-3 or len(left) == 1:
                assert error.span == ("loading" if first == "silence" else first)
                assert (error.kind == "budget") >= (first in ("prefill", "silence"))
            return
        now += seconds
        spent[span] += seconds
        if silent:
            unheard += seconds
        if state in ("pause", "load"):
            word = "loading" if state == "load" else "queued"
            clock.pauses(Waiting(state=word), now)
            if silent and word == "loading":
                spent["prefill"] -= unheard
                spent["loading"] += unheard
            span, silent, heard = STATES[word], False, now
        elif state == "sent":
            clock.sent(now)
            span, silent, unheard = "prefill", True, 0.0
        else:
            clock.hears(Waiting(state=state), now)
            if silent and span == "prefill":  # the silence before the first word is of that, too
                spent["prefill"] -= unheard
                spent[STATES[state]] += unheard
            elif state == "reading" and span != "prefill":
                spent["prefill"] = 0.0
            span, silent, heard = STATES[state], False, now


def test_another_backend_has_the_whole_budget_for_the_prompt():
    clock = clock_of()
    clock.hears(Waiting(state="reading", backend="a"), 1.0)
    clock.hears(Waiting(state="reading", backend="a"), 15.0)
    assert clock.due == 20.0
    clock.hears(Waiting(state="reading", backend="b"), 15.0)
    assert clock.due == 35.0


def test_another_backend_after_a_try_has_the_whole_budget_too():
    clock = clock_of()
    clock.sent(0.0)
    clock.hears(Waiting(state="reading", backend="a"), 1.0)
    clock.pauses(Waiting(state="queued"), 15.0)
    clock.sent(17.0)  # 15 s of 20 are spent at a
    assert clock.due == 22.0
    clock.hears(Waiting(state="reading", backend="b"), 18.0)
    assert clock.due == 37.0


def test_time_before_the_first_request_is_of_the_total_alone():
    clock = clock_of()
    clock.sent(15.0)
    assert clock.due == 35.0
    clock = clock_of(Budgets(prefill_s=20, total_s=30))
    clock.sent(15.0)
    assert clock.due == 30.0


def test_a_server_that_loads_its_model_reads_nothing():
    clock = clock_of()
    for second in range(0, 39, 2):  # it is asked every 2 s, and takes 1 s to say so
        clock.sent(float(second))
        assert clock.due == second + 20.0
        clock.pauses(Waiting(state="loading"), second + 1.0)
    assert not clock.has_room(Waiting(state="loading", eta_s=2.0), 39.0)


def test_after_the_first_piece_only_pieces_count():
    clock = clock_of()
    assert not clock.has_begun
    clock.shows(5.0)
    assert clock.has_begun and clock.due == 35.0
    clock.hears(Waiting(state="queued"), 30.0)
    assert clock.due == 35.0
    clock.idled(3.0)
    assert clock.due == 38.0 and isinstance(clock.error(38.0, "e"), Stalled)


def test_the_total_counts_from_the_call_and_bounds_everything():
    clock = Clock(Budgets(total_s=50.0), 30.0, began=0.0)
    assert clock.due == 50.0
    clock.shows(45.0)
    clock.idled(100.0)
    assert clock.due == 50.0 and not has_room(clock, 5.0) and has_room(clock, 4.0)
    assert clock.error(50.0, "e").kind is None  # it was asked for 20 of 50 s
    assert Clock(Budgets(total_s=50.0), 20.0, began=0.0).error(50.0, "e").kind == "budget"


def test_no_limits():
    clock = clock_of(Budgets(queue_s=None, prefill_s=None, stall_s=None))
    clock.shows(1.0)
    assert clock.due == math.inf
