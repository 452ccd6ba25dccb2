"""What nobody waits for behind the start: kernels of every size, graphs of every number of sequences and drafts."""

import pytest
from tests.engine.support.exactness import Scripted, build
from tests.engine.support.graphs import keep_keys
from tests.engine.support.steady import answer_all_kinds

from eyas.base.types import MAX_CHOICES, Request, SamplingParams
from eyas.engine.startup.warm_up import warm_up

PROMPT = tuple(range(40, 70))


def test_prompt_passes_of_every_size_are_captured(random_model):
    core = build(random_model, drafter="eagle3", draft_tokens=2, concurrency=3, chunk_tokens=256)
    stages = keep_keys(core)
    warm_up(core, 0.1)
    assert {key[1] for key in stages.keys if key[0] == "prompt"} == {1, 2, 3, 4, 5}
    assert {key[1] for key in stages.keys if key[0] == "first tokens"} == {1, 2, 3}
    assert core.is_idle and core.stats().num_prompt_tokens == 0


@pytest.mark.parametrize("draft_tokens", [3, pytest.param("auto", marks=pytest.mark.slow)])
def test_rounds_run_with_every_number_of_sequences_that_is_captured(random_model, draft_tokens):
    core = build(random_model, drafter="eagle3", draft_tokens=draft_tokens, concurrency=6)
    stages = keep_keys(core)
    warm_up(core, 600.0)
    numbers = range(core.scheduler.config.max_drafts + 1) if draft_tokens == "auto" else (3,)
    wanted = {(size, number) for size in (1, 2, 4, 6) for number in numbers}
    assert wanted <= {key[1][:2] for key in stages.keys if key[0] == "verify"}
    assert {pair for pair in wanted if pair[1]} <= {key[1:] for key in stages.keys if key[0] == "chain"}


@pytest.mark.slow
def test_rounds_run_with_more_sequences_than_a_request_has_choices(random_model):
    core = build(random_model, drafter="none", concurrency=MAX_CHOICES + 4)
    stages = keep_keys(core)
    warm_up(core, 60.0)
    assert {1, 2, 4, 8, 16, 20} <= {key[1][0] for key in stages.keys if key[0] == "verify"}
    assert core.is_idle


def test_prompts_that_end_beside_rounds_need_no_other_graphs(random_model):
    """An answer that begins does not make the head take in more rows of the others."""
    core = build(random_model, drafter="eagle3", draft_tokens=3, concurrency=2)
    stages = keep_keys(core)
    warm_up(core, 600.0)
    known = set(stages.keys)
    for number in range(9):
        params = SamplingParams(max_tokens=4 + 3 * number, ignore_eos=True, seed=number)
        core.add(Request(request_id=str(number), prompt_ids=PROMPT, params=params), lambda event: None)
    while not core.is_idle:
        core.step()
    assert stages.keys == known


@pytest.mark.slow
def test_drafting_behind_a_pause_needs_no_other_graphs(random_model):
    core = build(random_model, drafter="eagle3", draft_tokens="auto", concurrency=3)
    stages = keep_keys(core)
    warm_up(core, 600.0)
    known = set(stages.keys)
    most = core.scheduler.config.max_drafts
    schedule = [number for pause in (1, 5, 9, 20) for number in (*(pause * [0]), most, 1, 3)]
    for size in (1, 2, 3):
        core.draft_length = Scripted(schedule)
        params = SamplingParams(max_tokens=60, ignore_eos=True, seed=size, n=size)
        core.add(Request(request_id=str(size), prompt_ids=PROMPT, params=params), lambda event: None)
        while not core.is_idle:
            core.step()
        assert len(core.draft_length.outcomes) >= len(schedule)
    assert stages.keys == known


@pytest.mark.parametrize(
    ("drafter", "draft_tokens"),
    [
        ("ngram", 2),
        *(pytest.param(*rare, marks=pytest.mark.slow) for rare in (("none", 0), ("eagle3", 3), ("eagle3", "auto"))),
    ],
)
def test_no_request_needs_a_stage_that_did_not_run_before(random_speaker, drafter, draft_tokens):
    core = build(random_speaker, drafter=drafter, draft_tokens=draft_tokens, concurrency=5, memory="tight", lag=1)
    stages = keep_keys(core)
    warm_up(core, 600.0)
    known, stages.keys = stages.keys, set()
    answer_all_kinds(core, random_speaker)
    assert len(stages.keys) > 5 and stages.keys <= known


def test_it_is_not_reported(random_model):
    core = build(random_model, drafter="ngram", concurrency=1)
    warm_up(core, 0.1)
    assert core.take_report() is None and core.stats().num_rounds == 0
    core.add(Request(request_id="r", prompt_ids=PROMPT), lambda event: None)
    assert core.step().step == 1
