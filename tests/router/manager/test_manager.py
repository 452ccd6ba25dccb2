"""The manager in a loop: news and their order, ends, timers, listeners."""

import asyncio
import logging
from contextlib import suppress
from functools import wraps

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.support.policy_runs import OUT, READY, backend, router

from eyas.base.serving.budgets import Budgets
from eyas.base.serving.waiting import Waiting
from eyas.router.manager.condition import Condition
from eyas.router.manager.manager import Manager
from eyas.router.manager.visit import Go, NoBackend, Wanted

WANTED = Wanted(model="m", backends=("a", "b"))
FILE = router(backend("a", concurrency=1), backend("b", concurrency=1))
SHORT = 10.0  # seconds; what should come at once, comes within them on any machine


def ready(file=FILE, **options):
    manager = Manager(file, **options)
    for one in file.backends:
        manager.report(one.name, READY)
    return manager


async def next_go(visit):
    """The last news of a visit, which is where it goes."""
    news = [item async for item in visit.news()]
    assert all(isinstance(item, Waiting) for item in news[:-1])
    return news[-1]


def in_a_loop(test):
    """Run a test in a loop. It must leave nothing to run in it."""

    @wraps(test)
    def run(**fixtures):
        async def main():
            errors = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
            await asyncio.wait_for(test(**fixtures), 60.0)
            assert not errors, "in a timer"
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())

    return run


@in_a_loop
async def test_a_free_place_is_the_only_news():
    budgets = Budgets(prefill_s=7.0, stall_s=9.0)
    manager = ready(router(backend("a", budgets=budgets)))
    visit = manager.arrive(Wanted(model="m", backends=("a",)))
    assert [item async for item in visit.news()] == [Go(backend="a", budgets=budgets)]
    other = manager.arrive(Wanted(model="m", backends=("a",), budgets={"total_s": 3.0, "stall_s": None}))
    assert (await next_go(other)).budgets == Budgets(prefill_s=7.0, stall_s=None, total_s=3.0)


@in_a_loop
async def test_news_while_one_waits_and_the_place_of_one_that_leaves(monkeypatch):
    monkeypatch.setattr("eyas.router.manager.manager.NEWS_S", 0.01)
    monkeypatch.setattr("eyas.router.manager.manager.REPEAT_S", 1e6)
    manager = ready()
    first, second = manager.arrive(WANTED), manager.arrive(WANTED)
    third, fourth = manager.arrive(WANTED), manager.arrive(WANTED)
    third_news, fourth_news = third.news(), fourth.news()
    assert await anext(third_news) == Waiting(state="queued", position=1)
    assert await anext(fourth_news) == Waiting(state="queued", position=2)
    later = asyncio.ensure_future(anext(third_news))
    await asyncio.sleep(0)
    second.left()
    assert (await later).backend == "b"
    assert await asyncio.wait_for(anext(fourth_news), SHORT) == Waiting(state="queued", position=1)
    assert (await next_go(first)).backend == "a"
    first.done()
    assert (await anext(fourth_news)).backend == "a"
    assert [one.in_flight for one in manager.snapshot().backends.values()] == [1, 1]


@in_a_loop
async def test_a_wait_without_changes_has_news_now_and_then(monkeypatch):
    monkeypatch.setattr("eyas.router.manager.manager.NEWS_S", 0.01)
    monkeypatch.setattr("eyas.router.manager.manager.REPEAT_S", 0.05)
    manager = ready(router(backend("a", concurrency=1)))
    only = Wanted(model="m", backends=("a",))
    manager.arrive(only)
    visit = manager.arrive(only)
    news = visit.news()
    for _ in range(3):
        assert (await asyncio.wait_for(anext(news), SHORT)).position == 1
    other = manager.arrive(only)
    visit.left()
    assert [item async for item in news] == [], "it has left"
    news = other.news()
    for _ in range(2):
        assert (await asyncio.wait_for(anext(news), SHORT)).position == 1


@in_a_loop
async def test_a_load_is_said_and_what_comes_after_it(monkeypatch):
    monkeypatch.setattr("eyas.router.manager.manager.NEWS_S", 1e6)
    manager = Manager(FILE)
    manager.report("a", Condition(state="loading", eta_s=30.0))
    manager.report("b", OUT)
    first, second = manager.arrive(WANTED), manager.arrive(WANTED)
    first_news, second_news = first.news(), second.news()
    assert await anext(first_news) == await anext(second_news) == Waiting(state="loading", eta_s=30)
    manager.report("a", READY)
    assert (await anext(first_news)).backend == "a"
    assert await asyncio.wait_for(anext(second_news), SHORT) == Waiting(state="queued", position=1)
    manager.report("a", Condition(state="loading"))
    assert await asyncio.wait_for(anext(second_news), SHORT) == Waiting(state="loading")
    manager.close()
    with pytest.raises(NoBackend, match="stopping"):
        await anext(second_news)


@in_a_loop
async def test_after_a_failure_the_next_backend_and_then_the_reason():
    manager = ready()
    visit = manager.arrive(WANTED)
    assert (await next_go(visit)).backend == "a"
    visit.failed("broken", "it ended")
    assert (await next_go(visit)).backend == "b"
    visit.full(9.0)
    with pytest.raises(NoBackend) as caught:
        await next_go(visit)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 9.0)
    for call in (visit.done, visit.left, visit.full, lambda: visit.failed("status")):
        call()
    assert [one.in_flight for one in manager.snapshot().backends.values()] == [0, 0]


@pytest.mark.parametrize("kind", ["budget", "degenerate"])
def test_a_failure_inside_an_answer_ends_the_visit(kind):
    @in_a_loop
    async def run():
        manager = ready()
        visit = manager.arrive(WANTED)
        await next_go(visit)
        visit.shown()
        visit.shown()
        visit.failed(kind)
        with pytest.raises(NoBackend, match=kind) as caught:
            await next_go(visit)
        assert caught.value.status == (504 if kind == "budget" else 503)
        assert manager.snapshot().backends["a"].in_flight == 0

    run()


@in_a_loop
async def test_refusals_on_arrival():
    manager = Manager(FILE)
    manager.report("a", OUT)
    manager.report("b", OUT)
    with pytest.raises(NoBackend) as caught:
        manager.arrive(WANTED)
    assert caught.value.status == 503 and caught.value.retry_after_s >= 1.0
    full = ready(router(backend("a", concurrency=1), max_queue=0))
    only = Wanted(model="m", backends=("a",))
    full.arrive(only)
    with pytest.raises(NoBackend) as caught:
        full.arrive(only)
    assert caught.value.status == 429
    full.close()
    with pytest.raises(NoBackend, match="stopping"):
        full.arrive(only)


@in_a_loop
async def test_a_spent_budget_of_the_queue_wakes_by_itself():
    manager = ready()
    visits = [manager.arrive(WANTED) for _ in range(3)]  # the last one waits, with more time
    hasty = manager.arrive(Wanted(model="m", backends=("a", "b"), budgets={"queue_s": 0.05}))
    with pytest.raises(NoBackend) as caught:
        await asyncio.wait_for(next_go(hasty), SHORT)
    assert caught.value.status == 504
    for visit in visits:
        visit.left()


@in_a_loop
async def test_one_of_fifty_after_the_time_of_a_breaker():
    clock = [0.0]
    manager = ready(router(backend("a")), now=lambda: clock[0])
    only = Wanted(model="m", backends=("a",))
    for _ in range(5):
        visit = manager.arrive(only)
        await next_go(visit)
        visit.failed("status")
    with pytest.raises(NoBackend) as caught:
        manager.arrive(only)
    assert caught.value.retry_after_s == 60.0
    clock[0] = 60.0
    visits = [manager.arrive(only) for _ in range(50)]
    waits = [asyncio.ensure_future(next_go(visit)) for visit in visits]
    await asyncio.sleep(0)
    assert await waits[0] == Go(backend="a", is_probe=True)
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits[1:])
    visits[0].failed("status")
    ends = await asyncio.gather(*waits[1:], return_exceptions=True)
    assert {(end.status, end.retry_after_s) for end in ends} == {(503, 60.0)}


@in_a_loop
async def test_a_client_that_leaves_before_it_hears_that_it_may_go():
    manager = ready(router(backend("a", concurrency=1)))
    only = Wanted(model="m", backends=("a",))
    first, second, third = manager.arrive(only), manager.arrive(only), manager.arrive(only)
    await next_go(first)
    first.done()  # the second has the place now, and has not asked
    second.left()
    assert (await next_go(third)).backend == "a"
    assert [item async for item in second.news()] == []
    third.done()
    assert manager.snapshot().backends["a"].in_flight == 0


@in_a_loop
async def test_what_no_relay_should_do_is_said():
    visit = ready().arrive(WANTED)
    with pytest.raises(RuntimeError, match="at no backend"):
        visit.failed("broken")
    await next_go(visit)
    with pytest.raises(RuntimeError, match="at a backend"):
        await next_go(visit)
    visit.done()


@in_a_loop
async def test_listeners_hear_of_everything_and_may_fail(caplog):
    manager, heard = ready(), []

    def fail(happening):
        raise ValueError("a listener")

    manager.listeners += [fail, heard.append]
    with caplog.at_level(logging.ERROR):
        visit = manager.arrive(WANTED)
    await next_go(visit)
    visit.failed("one_symbol", "!!!!")
    manager.sighted("a", "one_symbol")
    assert [one.kind for one in heard] == ["sent", "failed", "degenerate", "sent", "degenerate", "loops"]
    assert all(one.time_s > 1e9 for one in heard) and "a listener failed" in caplog.text
    assert manager.condition("a") == READY


@in_a_loop
async def test_a_listener_may_report_and_the_next_decision_knows_it():
    manager = ready()
    manager.listeners.append(lambda one: manager.report("a", OUT) if one.kind == "loops" else None)
    manager.sighted("a", "one_symbol")
    manager.sighted("a", "one_symbol")
    assert manager.condition("a") == OUT and (await next_go(manager.arrive(WANTED))).backend == "b"


class TimersLoop(asyncio.SelectorEventLoop):
    """A loop that remembers which timers were set."""

    def __init__(self):
        super().__init__()
        self.timers = []

    def call_at(self, *args, **options):
        self.timers.append(super().call_at(*args, **options))
        return self.timers[-1]


ACTS = st.lists(st.sampled_from(["done", "failed", "full", "left", "late"]), min_size=1, max_size=6)


@given(st.lists(st.tuples(ACTS, st.integers(0, 3)), min_size=1, max_size=12))
@settings(max_examples=40)
def test_many_relays_at_once_leave_nothing_behind(relays):
    """Each relay does what its list says; some leave without having asked where to go, some while they wait."""

    async def relay(manager, acts, pauses):
        with suppress(NoBackend):
            visit = manager.arrive(WANTED)
            try:
                for act in acts:
                    if act == "late":
                        return
                    await next_go(visit)
                    for _ in range(pauses):
                        await asyncio.sleep(0)
                    visit.failed("status") if act == "failed" else getattr(visit, act)()
                    if act in ("done", "left"):
                        return
            finally:
                visit.left()

    async def main():
        clock = [0.0]
        manager = ready(now=lambda: clock[0])
        loop = asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(relay(manager, *one)) for one in relays]
        if len(tasks) > 3:
            loop.call_soon(tasks[-1].cancel)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SHORT)
        snapshot = manager.snapshot()
        assert [one.in_flight for one in snapshot.backends.values()] == [0, 0] and snapshot.queued == {"m": 0}
        assert not [one for one in loop.timers if not one.cancelled() and one.when() > loop.time()]

    with asyncio.Runner(loop_factory=TimersLoop) as runner:
        runner.run(main())
