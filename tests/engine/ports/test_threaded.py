"""The engine in its thread: requests from other threads, cancellation, refusals, failure and the end."""

import queue
import threading

import pytest

from eyas.base.errors import Busy, InvalidRequest, Unavailable
from eyas.base.types import FinishReason, ModelInfo, Request, SamplingParams
from eyas.engine.ports.threaded import Engine
from eyas.engine.startup.build import EngineOptions, build_engine

PROMPT = (4, 8, 15, 16, 23, 42)
INFO = ModelInfo(name="random", context=512, vocab_size=512, eos_ids=(510, 509), drafter="eagle3")


@pytest.fixture(params=[0, 1], ids=["lag0", "lag1"])
def engine(request, random_model):
    options = EngineOptions(
        context=512, concurrency=2, drafter="eagle3", draft_tokens=3, kv_bytes=1 << 27, lag=request.param
    )
    built = build_engine(random_model.config, random_model.weights, options, head=random_model.head)
    running = Engine(built, None, INFO)
    yield running
    running.close()
    assert not running._thread.is_alive()


def request(name="r", prompt=PROMPT, **params):
    return Request(request_id=name, prompt_ids=prompt, params=SamplingParams(**{"ignore_eos": True, **params}))


def events_of(inbox, num_choices=1):
    """Events until each choice has ended."""
    events = []
    while sum(event.finish is not None for event in events) < num_choices:
        events.append(inbox.get(timeout=30))
    return events


def submit(engine, *args, **params):
    inbox = queue.SimpleQueue()
    engine.submit(request(*args, **params), inbox.put)
    return inbox


def test_requests_run_together_and_one_after_the_other(engine):
    inboxes = [submit(engine, str(index), max_tokens=10, temperature=0) for index in range(5)]
    answers = [[token for event in events_of(inbox) for token in event.token_ids] for inbox in inboxes]
    assert len(answers[0]) == 10 and answers == [answers[0]] * 5
    assert engine.stats().num_generated_tokens == 50
    assert events_of(submit(engine, "again", max_tokens=1))[-1].finish is FinishReason.LENGTH
    assert engine.info is INFO


def test_events_come_from_the_engines_thread(engine):
    names = queue.SimpleQueue()
    engine.submit(request(max_tokens=1), lambda event: names.put(threading.current_thread().name))
    assert names.get(timeout=30) == "eyas-engine"


def test_cancelling_takes_effect_within_two_rounds(engine):
    """The request cancels itself from its third event on; after that come at most two with tokens."""
    inbox, seen = queue.SimpleQueue(), []

    def deliver(event):
        seen.append(event)
        if len(seen) == 3:
            engine.cancel("r")
        inbox.put(event)

    engine.submit(request(), deliver)
    events = events_of(inbox)
    assert events[-1].finish is FinishReason.CANCELLED and events[-1].token_ids == ()
    assert len(events) - 1 <= 3 + 2
    assert engine.stats().pages_used == {"full": 0, "sliding": 0}


def test_cancelling_right_after_submitting_and_unknown_ids(engine):
    inbox = submit(engine, n=3)
    engine.cancel("r")
    engine.cancel("nobody")
    events = events_of(inbox, 3)
    assert {event.choice for event in events if event.finish is FinishReason.CANCELLED} == {0, 1, 2}


def test_what_cannot_run_is_refused_in_the_callers_thread(engine):
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        engine.submit(request(prompt=()), print)
    with pytest.raises(InvalidRequest, match="512 tokens, the context holds 512"):
        engine.submit(request(prompt=(1,) * 512), print)


def test_an_id_in_use_is_refused_by_an_event_for_each_choice(engine):
    first = submit(engine)
    events = events_of(submit(engine, n=2), 2)
    assert [(e.finish, e.token_ids) for e in events] == [(FinishReason.INVALID, ())] * 2
    assert "is running" in events[0].error
    engine.cancel("r")
    assert events_of(first)[-1].finish is FinishReason.CANCELLED


def test_a_full_queue_is_busy(engine):
    engine._max_queue = 1
    inboxes = [submit(engine, str(index)) for index in range(2)]
    for inbox in inboxes:
        inbox.get(timeout=30)  # both run
    third = submit(engine, "2")
    with pytest.raises(Busy, match="1 waiting, at most 1"):  # also while the third is still on its way
        submit(engine, "3")
    for index in range(3):
        engine.cancel(str(index))
    assert events_of(third)[-1].finish is FinishReason.CANCELLED


def test_closing_cancels_what_runs_and_takes_nothing_more(engine):
    inboxes = [submit(engine, str(index)) for index in range(4)]
    inboxes[0].get(timeout=30)
    engine.close()
    last = [events_of(inbox)[-1] for inbox in inboxes]
    assert [(event.finish, event.error) for event in last] == [(FinishReason.CANCELLED, None)] * 4
    with pytest.raises(Unavailable, match="stopping"):
        submit(engine, "late")
    engine.cancel("0")
    engine.close()


def test_a_failed_step_ends_all_requests_with_its_message_and_later_ones_are_refused(engine, caplog):
    """Also those that were sent before the failure and taken in after it."""
    core, failed, go_on = engine._core, threading.Event(), threading.Event()

    def broken(plan, **_):
        failed.set()
        go_on.wait(30)
        raise RuntimeError("out of memory")

    core.runner.run = broken
    inbox = submit(engine, "early", n=2)
    assert failed.wait(30)
    queued = submit(engine, "queued")
    go_on.set()
    events = events_of(inbox, 2) + events_of(queued)
    assert {event.error for event in events} == {"the engine failed: out of memory"}
    assert {event.finish for event in events} == {FinishReason.ERROR}
    with pytest.raises(Unavailable, match="out of memory"):
        submit(engine, "late")
    assert engine.stats().num_running == engine.stats().num_waiting == 0
    assert caplog.text.count("a step of the engine failed") == 1


def test_each_choice_has_one_last_event_though_nothing_can_be_released(engine, caplog):
    core, reports = engine._core, queue.SimpleQueue()
    engine.observe(reports.put)
    inboxes = [submit(engine, "a", n=2), submit(engine, "b")]
    events = [inboxes[0].get(timeout=30)]  # two choices run, the third waits

    def fails(*_, **__):
        raise RuntimeError("no such page")

    core.scheduler.finish = core.runner.run = fails
    for inbox, num_choices in zip(inboxes, (2, 1), strict=True):
        events += events_of(inbox, num_choices)
    last = [event for event in events if event.finish is not None]
    assert sorted((event.request_id, event.choice) for event in last) == [("a", 0), ("a", 1), ("b", 0)]
    assert {(event.finish, event.error) for event in last} == {(FinishReason.ERROR, "the engine failed: no such page")}
    with pytest.raises(Unavailable, match="no such page"):
        submit(engine, "late")
    engine.close()
    assert all(inbox.empty() for inbox in inboxes)
    reported = []
    while not reports.empty():
        reported += reports.get().events
    assert [event for event in reported if event.finish is not None] == last
    assert caplog.text.count("held was not released") == 3


def test_a_thread_that_ends_leaves_nobody_waiting(engine, caplog):
    """Nor those whose requests it had not taken in."""
    stepping, go_on = threading.Event(), threading.Event()
    inbox = submit(engine, "early", n=2)
    inbox.get(timeout=30)

    def ends():
        stepping.set()
        go_on.wait(30)
        raise SystemExit

    engine._core.step = ends
    assert stepping.wait(30)
    queued = submit(engine, "queued")
    go_on.set()
    last = [event for event in events_of(inbox, 2) + events_of(queued) if event.finish is not None]
    assert {(event.finish, event.error) for event in last} == {
        (FinishReason.ERROR, "the engine's thread ended: SystemExit()")
    }
    with pytest.raises(Unavailable, match="thread ended"):
        submit(engine, "late")
    engine.close()
    assert engine._num_sent == 0 and "the engine's thread ended" in caplog.text


def test_a_fault_while_a_request_is_taken_in_is_that_requests_alone(engine, caplog):
    """It no longer counts for the queue, and its error comes under the last step's number."""
    reports, add = queue.SimpleQueue(), engine._core.add
    engine.observe(reports.put)
    events_of(submit(engine, "a", max_tokens=4))

    def fails(request, deliver):
        raise KeyError("no such thing")

    engine._core.add = fails
    events = events_of(submit(engine, "odd", n=2), 2)
    assert [(e.finish, e.error) for e in events] == [
        (FinishReason.ERROR, "the request could not be enqueued: 'no such thing'")
    ] * 2
    report = reports.get(timeout=30)
    while "odd" not in {event.request_id for event in report.events}:
        report = reports.get(timeout=30)
    assert report.events[:2] == tuple(events) and report.step == engine._core._num_steps > 1
    engine._core.add = add
    assert engine._num_sent == 0 and "could not enqueue request odd" in caplog.text
    assert events_of(submit(engine, "b", max_tokens=2))[-1].finish is FinishReason.LENGTH


def test_all_choices_of_a_request_count_for_the_queue(engine):
    engine._max_queue = 1  # two run
    with pytest.raises(InvalidRequest, match="n must be at most 3"):
        submit(engine, "a", n=4)
    inbox = submit(engine, "b", n=2)
    with pytest.raises(Busy, match="waiting, at most 1, and n asks for 2"):
        submit(engine, "c", n=2)
    engine.cancel("b")
    events_of(inbox, 2)


def test_every_event_is_in_one_report_refusals_and_cancellations_too(engine, caplog):
    reports, inboxes = [], []
    engine.observe(reports.append)
    inboxes.append(submit(engine, "a", n=2, max_tokens=6))
    inboxes.append(submit(engine, "b"))
    inboxes.append(submit(engine, "b", n=2))  # refused: the id is in use
    inboxes[1].get(timeout=30)
    engine.cancel("b")
    events = [event for inbox, n in zip(inboxes, (2, 1, 2), strict=True) for event in events_of(inbox, n)]
    events_of(submit(engine, "c", max_tokens=2))  # a step is reported before the next one begins
    engine.observe(lambda report: 1 / 0)
    events_of(submit(engine, "d", max_tokens=2))
    engine.close()
    reported = [event for report in reports for event in report.events]
    for name in "ab":
        mine = [event for event in reported if event.request_id == name]
        assert len(mine) == len([event for event in events if event.request_id == name]) + (name == "b")  # the first
    assert all(report.stats.memory_bytes == engine.stats().memory_bytes for report in reports)
    assert engine.current_step == 0 and "step observer raised" in caplog.text
