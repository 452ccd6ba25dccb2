"""What the conditions of backends mean for requests, and which sessions stay where."""

import pytest
from tests.router.support.policy_runs import OUT, READY, PolicyRun, backend, opened, router

from eyas.base.serving.waiting import Waiting
from eyas.router.manager.condition import Condition

LOADING = Condition(state="loading", eta_s=40.0)
A, B = backend("a", concurrency=2), backend("b", concurrency=2)

# -- conditions --------------------------------------------------------------------------------------------------------


def test_a_load_is_waited_for_and_no_failure():
    run = PolicyRun(router(A), is_ready=False)
    run.report("a", LOADING)
    visits = run.arrivals(3)
    assert {run.waits(visit) for visit in visits} == {Waiting(state="loading", eta_s=40)}
    run.pass_time(30.0)
    assert run.waits(visits[0]) == Waiting(state="loading", eta_s=10)
    run.report("a", READY)
    assert list(run.at) == visits[:2] and run.waits(visits[2]) == Waiting(state="queued", position=1)
    assert run.snapshot().backends["a"].failures == 0


UNLOADING = Condition(state="unloading", reason="emergency: 91% of the memory is used")


@pytest.mark.parametrize("kind", ["refused", "broken", "status", "malformed"])
def test_a_request_without_an_answer_waits_again_for_a_backend_that_was_unloaded_beneath_it_once(kind):
    run = PolicyRun(router(A))
    visit, shown = run.arrivals(2)
    run.show(shown)
    run.report("a", UNLOADING)
    run.fail(visit, kind)
    run.fail(shown, kind)
    assert run.waits(visit).state == "loading" and run.policy.to_load(run.now) == {"a": run.now}
    assert run.snapshot().backends["a"].failures == 0 and not run.refused
    run.report("a", Condition(state="idle"))
    run.report("a", LOADING)
    run.report("a", READY)
    assert run.sent[visit] == ["a", "a"]
    run.report("a", UNLOADING)
    run.fail(visit, kind)
    assert run.refused[visit].status == 503


def test_what_fails_at_a_backend_that_was_not_unloaded_or_has_had_its_time_is_a_failure():
    run = PolicyRun(router(A))
    run.report("a", UNLOADING)
    run.report("a", LOADING)
    run.report("a", READY)
    run.pass_time(1.0)
    early, late = run.arrivals(2)
    run.fail(early, "broken")
    run.report("a", UNLOADING)
    run.fail(late, "budget")
    assert run.refused[early].status == 503 and run.refused[late].status == 504
    assert run.snapshot().backends["a"].failures == 2


def test_a_load_is_no_part_of_the_budget_of_the_queue():
    run = PolicyRun(router(A), is_ready=False)
    run.report("a", Condition(state="loading", eta_s=600.0))
    visits = run.arrivals(3)
    run.pass_time(500.0)
    run.report("a", READY)
    run.pass_time(119.0)
    assert run.waits(visits[2])
    run.pass_time(2.0)
    assert run.refused[visits[2]].status == 504


def test_a_load_interrupts_the_budget_of_the_queue():
    run = PolicyRun(router(A))
    *_, visit = run.arrivals(3)
    run.pass_time(100.0)
    run.report("a", Condition(state="loading", eta_s=600.0))
    assert run.waits(visit).state == "loading"
    run.pass_time(500.0)
    run.report("a", READY)
    run.pass_time(19.0)
    assert run.waits(visit).state == "queued"
    run.pass_time(2.0)
    assert run.refused[visit].status == 504


def test_a_load_that_never_ends_is_not_waited_for_for_ever():
    run = PolicyRun(router(A, B), is_ready=False)
    run.report("a", LOADING)
    run.report("b", OUT)
    planned = run.arrive()
    run.pass_time(71.0)
    assert run.refused[planned].status == 503 and "a did not become ready" in run.refused[planned].message
    run.report("b", READY)
    run.report("a", Condition(state="loading"))
    run.report("a", Condition(state="ready"))
    run.report("a", Condition(state="loading"))
    run.report("b", OUT)
    other = run.arrive()
    run.pass_time(1799.0)
    assert run.waits(other).state == "loading"
    run.pass_time(2.0)
    assert run.refused[other].status == 503


def test_a_load_that_fails_ends_the_wait():
    run = PolicyRun(router(A), is_ready=False)
    run.report("a", LOADING)
    visit = run.arrive()
    run.report("a", Condition(state="out", reason="its process ended", cause="failed"))
    assert run.refused[visit].status == 503 and "a is out" in run.refused[visit].message
    assert run.happenings("condition")[-1].text == "out: its process ended"


def test_a_backend_that_was_loaded_again_is_probed_at_once():
    run = PolicyRun(router(A))
    opened(run)
    run.report("a", LOADING)
    visits = run.arrivals(3)
    assert run.waits(visits[0]).state == "loading"
    run.report("a", READY)
    assert run.at == {visits[0]: "a"} and run.waits(visits[1]).state == "queued"


def test_before_the_first_look_requests_wait_for_a_short_time():
    run = PolicyRun(router(A, B), is_ready=False)
    visit = run.arrive()
    assert run.waits(visit) == Waiting(state="loading")
    run.report("b", READY)
    assert run.at[visit] == "b"
    slow = PolicyRun(router(A), is_ready=False)
    visit = slow.arrive()
    slow.pass_time(31.0)
    assert slow.refused[visit].status == 503
    assert slow.arrive() in slow.refused


def test_one_that_failed_too_often_is_not_waited_for_since_it_is_unknown_now():
    run = PolicyRun(router(A))
    opened(run)
    run.report("a", Condition(reason="refuses connections"))
    assert run.refused[run.arrive()].retry_after_s == 60.0
    run.pass_time(60.0)
    run.report("a", LOADING)
    assert run.waits(run.arrive())


def test_a_request_at_a_backend_is_not_touched_by_its_condition():
    run = PolicyRun(router(A, B))
    visit = run.arrive()
    for condition in (OUT, READY, LOADING, Condition(), OUT):
        run.report("a", condition)
    assert run.at == {visit: "a"} and run.sent[visit] == ["a"]
    run.done(visit)
    assert run.sent[run.arrive()] == ["b"]


def test_a_report_of_what_is_known_is_no_happening():
    run = PolicyRun(router(A))
    for eta_s in (40.0, 38.0, 36.0):
        run.report("a", Condition(state="loading", eta_s=eta_s))
    assert [one.condition for one in run.happenings("condition")] == ["ready", "loading"]


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_stays_with_its_backend_while_that_is_ready():
    run = PolicyRun(router(A, B))
    run.report("a", OUT)
    run.done(run.arrive(sticky="s"))
    run.report("a", READY)
    assert [run.sent[run.arrive(sticky=name)] for name in ("s", "other", None)] == [["b"], ["a"], ["a"]]
    run.report("b", OUT)
    again = run.arrive(sticky="s")
    assert run.waits(again).state == "queued", "its backend is out, and the other one full"


def test_a_session_waits_for_its_backend_a_moment_though_another_is_free():
    run = PolicyRun(router(backend("a", concurrency=1), B))
    run.done(run.arrive(sticky="s"))
    other = run.arrive()
    patient = run.arrive(sticky="s")
    assert run.waits(patient)
    run.pass_time(5.0)
    run.done(other)
    assert run.at[patient] == "a"
    hasty = run.arrive(sticky="s")
    run.pass_time(10.0)
    assert run.at[hasty] == "b"


def test_a_session_does_not_wait_for_a_backend_that_is_being_probed():
    run = PolicyRun(router(A, B))
    run.done(run.arrive(sticky="s"))
    opened(run)
    run.pass_time(60.0)
    assert run.sent[run.arrive()] == ["a"] and run.sent[run.arrive(sticky="s")] == ["b"]


def test_what_must_stay_with_its_backend_never_goes_elsewhere():
    run = PolicyRun(router(A, B))
    run.done(run.arrive(sticky="s"))
    visit = run.arrive(sticky="s", must_stick=True)
    run.fail(visit, "degenerate")
    assert run.sent[visit] == ["a"] and run.refused[visit].status == 503
    run.report("a", OUT)
    assert run.refused[run.arrive(sticky="s", must_stick=True)].status == 503
    stored = run.arrive(sticky="resp_1", must_stick=True, backends=("b",))
    assert run.sent[stored] == ["b"]


def test_sessions_are_forgotten_the_oldest_first(monkeypatch):
    monkeypatch.setattr("eyas.router.manager.policy.MAX_SESSIONS", 2)
    run = PolicyRun(router(A, B))
    run.report("a", OUT)
    for name in ("s1", "s2", "s1", "s3"):
        run.done(run.arrive(sticky=name))
    run.report("a", READY)
    assert [run.sent[run.arrive(sticky=name)] for name in ("s1", "s3")] == [["b"], ["b"]]
    assert run.sent[run.arrive(sticky="s2")] == ["a"]
