"""Reports of steps: every event once, all of a step in one, pages by owner."""

import time

import pytest
from tests.engine.support.exactness import build

from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.engine.draft_length.step_costs import Timing

PROMPT = tuple(range(40, 70))


@pytest.mark.parametrize("lag", [0, 1])
def test_reports_hold_every_event_once_and_one_report_tells_of_all_sequences(random_model, lag):
    core, delivered, reports = build(random_model, drafter="ngram", draft_tokens=3, concurrency=4, lag=lag), [], []
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    for name in "abc":
        core.add(Request(request_id=name, prompt_ids=PROMPT, params=params), delivered.append)
    while not core.is_idle:
        reports.append(core.step())
        if len(reports) == 6:
            core.cancel("b")
    reports = [report for report in reports if report is not None]
    assert [event for report in reports for event in report.events] == delivered
    assert [report.step for report in reports] == list(range(1, len(reports) + 1))
    assert all(report.ms > 0 for report in reports)
    assert any({event.request_id for event in report.events} == {"a", "b", "c"} for report in reports)
    for report in reports:
        drafted = {event.round is not None for event in report.events if event.finish is not FinishReason.CANCELLED}
        assert drafted <= {report.num_drafts == 3}
    assert any(event.finish is FinishReason.CANCELLED for event in delivered)
    assert reports[-1].pages == () and reports[-1].stats == core.stats()


def test_events_outside_a_step_reach_the_next_report_of_an_idle_engine_too(random_model):
    core = build(random_model, concurrency=2)
    assert core.step() is core.take_report() is None
    core.add(Request(request_id="r", prompt_ids=PROMPT, params=SamplingParams(n=2)), lambda event: None)
    core.cancel("r")
    report = core.step()
    assert [event.finish for event in report.events] == [FinishReason.CANCELLED] * 2
    assert (report.step, report.ms, core.step()) == (0, 0, None)
    core.add(Request(request_id="r", prompt_ids=PROMPT), lambda event: None)
    core.step()
    core.fail_all("gone", FinishReason.ERROR)
    assert [event.error for event in core.take_report().events] == ["gone"]
    assert core.take_report() is None


@pytest.mark.parametrize("lag", [0, 1])
def test_steps_tell_when_a_choice_began_and_what_they_computed(random_model, lag):
    """With room for one: the second begins when the first has ended."""
    core, events, ends = build(random_model, concurrency=1, lag=lag, chunk_tokens=64), [], []

    def deliver(event):
        events.append(event)
        if event.finish:
            ends.append(time.perf_counter())

    submitted = time.perf_counter()
    for name in "ab":
        prompt = (*PROMPT * 3, ord(name))
        core.add(Request(request_id=name, prompt_ids=prompt, params=SamplingParams(max_tokens=6, seed=1)), deliver)
    reports = []
    while not core.is_idle:
        reports.append(core.step())
    began = {name: {event.began for event in events if event.request_id == name} for name in "ab"}
    (first,), (second,) = began["a"], began["b"]
    assert submitted < first < ends[0] < second < ends[1]
    assert sum(report.num_tokens - report.num_prompt_tokens for report in reports if report) == 12
    computed = sum(report.num_prompt_tokens for report in reports if report)
    assert computed == 2 * 91 - core.stats().num_cached_tokens and core.stats().num_cached_tokens > 0


def test_pages_are_told_by_owner(random_model):
    core = build(random_model, concurrency=2, page_size=8)
    params = SamplingParams(n=2, seed=1, max_tokens=12, ignore_eos=True)
    core.add(Request(request_id="r", prompt_ids=PROMPT, params=params), lambda event: None)
    pages = [core.step().pages for _ in range(5)][-1]
    assert [(owner.request_id, owner.choice) for owner in pages] == [("r", 0), ("r", 1)]
    assert {(owner.num_full, owner.num_sliding) for owner in pages} == {(5, 3)}  # two have left the window


def test_a_round_tells_what_it_would_take_without_drafts_once_that_was_measured(random_model):
    core, reports = build(random_model, drafter="ngram", draft_tokens="auto", concurrency=2), []
    params = SamplingParams(n=2, max_tokens=9, ignore_eos=True)
    core.add(Request(request_id="r", prompt_ids=PROMPT, params=params), lambda event: None)
    for _ in range(3):
        reports.append(core.step())
    core.draft_length.learn([Timing(1, 1, 0, 0.5), Timing(2, 2, 0, 0.6)])
    reports.append(core.step())
    assert [report.undrafted_ms for report in reports[:3]] == [None] * 3
    assert reports[3].undrafted_ms == 1e3 * core.draft_length.costs.table(2)[0, 0]
