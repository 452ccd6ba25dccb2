"""Which backend answers which request: each rule by name."""

import pytest
from tests.router.support.policy_runs import OUT, PolicyRun, backend, opened, router

from eyas.base.serving.budgets import Budgets
from eyas.base.serving.waiting import Waiting
from eyas.router.manager.events import Sighted

A, B, C = backend("a", concurrency=2), backend("b", concurrency=2), backend("c", concurrency=2)


# -- places and the queue ----------------------------------------------------------------------------------------------


def test_the_first_backend_with_a_place_answers_and_the_rest_wait():
    run = PolicyRun(router(A, B))
    visits = run.arrivals(6)
    assert [run.sent[visit] for visit in visits] == [["a"], ["a"], ["b"], ["b"], [], []]
    assert run.waits(visits[5]) == Waiting(state="queued", position=2)
    assert run.snapshot().queued == {"m": 2}
    run.done(visits[2])
    assert run.at[visits[4]] == "b" and run.waits(visits[5]).position == 1


def test_concurrency_is_eight_unless_the_file_says_otherwise():
    run = PolicyRun(router(backend("a")))
    run.arrivals(9)
    assert run.snapshot().backends["a"].in_flight == run.snapshot().backends["a"].concurrency == 8


def test_a_client_with_one_request_does_not_wait_for_one_with_fifty():
    run = PolicyRun(router(A))
    many = run.arrivals(50, client="many")
    one = run.arrive(client="one")
    run.done(many[0])
    run.done(many[1])
    assert one in run.at and run.waits(many[2]) is None and run.waits(many[3]).position == 1


def test_a_full_queue_refuses_those_who_have_most_in_it():
    run = PolicyRun(router(A, max_queue=4))
    many = run.arrivals(6, client="many")
    assert not run.refused
    greedy, modest = run.arrive(client="many"), run.arrive(client="one")
    assert run.refused[greedy].status == run.refused[many[-1]].status == 429
    assert run.refused[greedy].retry_after_s >= 1.0 and run.waits(modest)
    assert "too many requests wait" in run.refused[greedy].message


def test_the_guess_how_long_a_wait_will_be():
    run = PolicyRun(router(A))
    visits = run.arrivals(8)
    assert run.waits(visits[-1]).eta_s is None
    run.pass_time(10.0)
    run.done(visits[0])
    assert run.waits(visits[-1]) == Waiting(state="queued", position=5, eta_s=25)


def test_a_client_that_leaves_frees_its_place_or_its_turn():
    run = PolicyRun(router(A))
    first, second, third, fourth = run.arrivals(4)
    run.leave(third)
    run.leave(first)
    assert run.at == {second: "a", fourth: "a"} and run.snapshot().queued == {"m": 0}
    assert run.snapshot().backends["a"].failures == 0
    run.leave(first)
    assert run.snapshot().backends["a"].in_flight == 2, "it had left"


def test_the_budget_of_the_queue():
    run = PolicyRun(router(A))
    visits = run.arrivals(3)
    run.pass_time(119.9)
    assert run.waits(visits[2])
    run.pass_time(0.2)
    refused = run.refused[visits[2]]
    assert (refused.status, refused.code) == (504, "queue_timeout") and "waited 120 s" in refused.message
    hasty = run.arrive(budgets={"queue_s": 1.0})
    run.pass_time(1.1)
    assert run.refused[hasty].status == 504, "a route's budget comes first"
    short = run.arrive(budgets={"total_s": 2.0})
    run.pass_time(1.9)
    assert run.waits(short)
    run.pass_time(0.2)
    assert run.refused[short].status == 504 and "waited 2 s" in run.refused[short].message


def test_a_backend_whose_queue_budget_is_spent_leaves_the_others():
    hasty = backend("hasty", concurrency=1, budgets=Budgets(queue_s=5.0))
    run = PolicyRun(router(hasty, backend("b", concurrency=1)))
    _, second, third = run.arrivals(3)
    lost = run.arrive(backends=("hasty",))
    run.pass_time(6.0)
    assert run.refused[lost].status == 504 and run.waits(third)
    run.done(second)
    assert run.at[third] == "b"


def test_the_budget_of_the_queue_is_one_for_all_waits_of_a_request():
    run = PolicyRun(router(A, B))
    first, *_, visit = run.arrivals(5)
    run.pass_time(70.0)
    run.done(first)
    assert run.at[visit] == "a"
    run.pass_time(500.0)
    run.fail(visit)
    assert run.waits(visit), "time at a backend is none in the queue"
    run.pass_time(49.0)
    assert run.waits(visit)
    run.pass_time(2.0)
    assert run.refused[visit].status == 504


def test_no_budget_for_the_queue_is_no_limit():
    run = PolicyRun(router(A))
    visits = run.arrivals(3, budgets={"queue_s": None})
    run.pass_time(1e6)
    assert run.waits(visits[2])


# -- the breaker -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["refused", "broken", "status", "budget", "malformed"])
def test_after_five_failures_the_sixth_request_does_not_reach_the_backend(kind):
    run = PolicyRun(router(A))
    for number in range(5):
        run.fail(run.arrive(), kind)
        assert run.refused[number + 1].status == (504 if kind == "budget" else 503)
        assert (run.refused[number + 1].retry_after_s or 1.0) == 1.0 if number < 4 else 60.0
    run.pass_time(20.0)
    sixth = run.arrive()
    assert not run.sent[sixth] and run.refused[sixth].status == 503 and run.refused[sixth].retry_after_s == 40.0
    assert "tried again in 40 s" in run.refused[sixth].message
    assert [one.breaker for one in run.happenings("breaker")] == ["open"]


def test_of_fifty_requests_when_the_time_is_up_one_reaches_the_backend():
    run = PolicyRun(router(A))
    opened(run)
    run.pass_time(60.0)
    visits = run.arrivals(50)
    assert list(run.at) == visits[:1] and len(run.refused) == 5
    run.pass_time(30.0)
    assert list(run.at) == visits[:1]
    run.fail(visits[0], "budget")
    assert not run.at and {run.refused[visit].status for visit in visits[1:]} == {503}
    assert {run.refused[visit].retry_after_s for visit in visits[1:]} == {60.0}


def test_a_probe_that_is_answered_lets_those_in_that_waited():
    run = PolicyRun(router(A))
    opened(run)
    run.pass_time(60.0)
    visits = run.arrivals(5)
    run.done(visits[0])
    assert [run.at.get(visit) for visit in visits] == [None, "a", "a", None, None]
    assert [one.breaker for one in run.happenings("breaker")] == ["open", "probing", "closed"]


@pytest.mark.parametrize("how", ["leave", "full"])
def test_a_probe_that_says_nothing_gives_its_place_to_the_next(how):
    run = PolicyRun(router(A))
    opened(run)
    run.pass_time(60.0)
    first, second, third = run.arrivals(3)
    getattr(run, how)(first)
    assert run.at == {second: "a"} and run.waits(third)
    assert [one.is_probe for one in run.happenings("sent")][-2:] == [True, True]


def test_neither_answers_nor_loops_nor_full_backends_count_as_failures():
    run = PolicyRun(router(A))
    for number in range(12):
        visit = run.arrive()
        if number % 3 == 0:
            run.fail(visit, "degenerate")
        elif number % 3 == 1:
            run.fail(visit, "one_symbol")
        else:
            run.full(visit)
    assert run.snapshot().backends["a"].failures == 0


def test_a_failure_inside_an_answer_counts_and_ends_the_request():
    run = PolicyRun(router(A, B))
    for _ in range(5):
        visit = run.arrive()
        run.show(visit)
        run.fail(visit, "budget")
        assert run.sent[visit] == ["a"] and visit not in run.refused and visit not in run.at
    assert run.snapshot().backends["a"].breaker == "open"


def test_those_who_wait_for_a_backend_whose_breaker_opens_go_elsewhere_or_are_refused():
    run = PolicyRun(router(backend("a", concurrency=5), backend("b", concurrency=1), models={"m": "ab", "n": "a"}))
    visits = run.arrivals(9, model="n")
    other = run.arrive(backends=("b",))
    patient, lost = run.arrive(), run.arrive("n")
    for visit in visits[:5]:
        run.fail(visit)
    assert list(run.at) == [other, *visits[5:]], "each failure but the last let one in"
    assert run.waits(patient) and run.refused[lost].status == 503
    run.done(other)
    assert run.at[patient] == "b"


def test_one_that_waits_elsewhere_becomes_the_probe():
    run = PolicyRun(router(A, B))
    opened(run)
    run.arrivals(2)
    third = run.arrive()
    assert run.waits(third)
    run.pass_time(60.0)
    assert run.at[third] == "a" and run.snapshot().backends["a"].breaker == "probing"


def test_with_all_backends_out_the_earliest_time_to_come_again():
    run = PolicyRun(router(A, B, C))
    opened(run, "a")
    run.pass_time(25.0)
    opened(run, "b")
    run.report("c", OUT)
    run.pass_time(5.0)
    refused = run.refused[run.arrive()]
    assert (refused.status, refused.retry_after_s) == (503, 30.0)
    assert "a failed too often" in refused.message and "c is out" in refused.message
    run.report("a", OUT)
    assert run.refused[run.arrive()].retry_after_s == 55.0
    run.report("b", OUT)
    assert run.refused[run.arrive()].retry_after_s >= 1.0


# -- fallback ----------------------------------------------------------------------------------------------------------


def test_a_failure_before_the_first_content_sends_a_request_on_to_each_backend_once():
    run = PolicyRun(router(A, B, C))
    visit = run.arrive()
    for kind in ("refused", "status", "malformed"):
        run.fail(visit, kind)
    assert run.sent[visit] == ["a", "b", "c"] and run.refused[visit].status == 503
    assert "a failed (refused); b failed (status); c failed (malformed)" in run.refused[visit].message
    assert [one.failure for one in run.happenings("failed")] == ["refused", "status", "malformed"]


def test_full_means_the_next_backend_and_full_everywhere_429():
    run = PolicyRun(router(A, B))
    visit = run.arrive()
    run.full(visit, 30.0)
    assert run.at[visit] == "b"
    run.full(visit, 7.0)
    assert run.sent[visit] == ["a", "b"]
    assert (run.refused[visit].status, run.refused[visit].retry_after_s) == (429, 7.0)
    other = run.arrive()
    run.full(other)
    run.fail(other)
    assert (run.refused[other].status, run.refused[other].retry_after_s) == (429, 1.0)


def test_one_that_comes_back_waits_before_those_that_came_later():
    run = PolicyRun(router(A, B))
    first, *_ = run.arrivals(4, client="x")
    later = run.arrive(client="x")
    run.fail(first)
    assert run.waits(first).position == 1 and run.at[later] == "a"


@pytest.mark.parametrize("kind", ["degenerate", "one_symbol"])
def test_after_a_loop_the_twin_comes_first(kind):
    run = PolicyRun(router(A, B, backend("twin", twin_of="a")))
    visit = run.arrive()
    run.fail(visit, kind)
    run.fail(visit, "refused")
    assert run.sent[visit] == ["a", "twin", "b"]
    other = run.arrive()
    run.fail(other, "broken")
    assert run.sent[other] == ["a", "b"], "speculation is not what failed"


def test_a_twin_that_no_model_names_is_asked_after_a_loop_alone():
    run = PolicyRun(router(A, B, backend("twin", twin_of="a"), models={"m": ("a", "b")}))
    visit, other = run.arrivals(2)
    run.fail(visit, "degenerate")
    run.fail(other, "broken")
    run.fail(other, "broken")
    assert run.sent[visit] == ["a", "twin"] and run.sent[other] == ["a", "b"] and other in run.refused


def test_two_loops_of_one_symbol_in_ten_minutes_are_reported_once():
    run = PolicyRun(router(A))
    run.fail(run.arrive(), "one_symbol")
    run.fail(run.arrive(), "degenerate")
    run.pass_time(601.0)
    run.fail(run.arrive(), "one_symbol")
    assert not run.happenings("loops")
    run.pass_time(599.0)
    run.decide(Sighted("a", "one_symbol", "!!!!!!!!"))
    assert [one.backend for one in run.happenings("loops")] == ["a"]
    run.fail(run.arrive(), "one_symbol")
    assert len(run.happenings("loops")) == 1, "what they did before it is dealt with"
    assert [one.failure for one in run.happenings("degenerate")].count("one_symbol") == 4


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_router_that_stops_refuses_those_who_wait_and_lets_answers_go_on():
    run = PolicyRun(router(A))
    visits = run.arrivals(3)
    run.close()
    assert run.refused[visits[2]].status == 503 and "stopping" in run.refused[visits[2]].message
    run.done(visits[0])
    run.fail(visits[1])
    assert visits[1] in run.refused and run.arrive() in run.refused and not run.at


def test_happenings_of_a_request():
    run = PolicyRun(router(A, B))
    visit = run.arrive(route="MATH")
    run.pass_time(3.0)
    run.fail(visit, "status", "500 Internal Server Error")
    run.pass_time(4.0)
    run.done(visit)
    told = [one for one in run.effects if getattr(one, "model", None)]
    assert [(one.kind, one.backend, one.failure, one.seconds) for one in told] == [
        ("sent", "a", None, 0.0),
        ("failed", "a", "status", 3.0),
        ("sent", "b", None, 0.0),
        ("done", "b", None, 4.0),
    ]
    assert {(one.model, one.route) for one in told} == {("m", "MATH")}
    assert told[1].text == "500 Internal Server Error"
