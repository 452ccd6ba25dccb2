"""Which measurement is a choice's."""

from msgspec.structs import replace
from tests.recipes.support.numbers import setup

from eyas.recipes.measured import drafts_of, measured_for
from eyas.recipes.plan import Measured, Range

CHOICE, *_ = setup("h200", "eyas", head="lmsys-120b", drafts=3, concurrency=4)
ROW = Measured(
    engine="eyas",
    version=CHOICE.version,
    head="lmsys-120b",
    draft_tokens=3,
    context=128,
    concurrency=4,
    windows=5,
    tokens_per_second=100.0,
    interval=Range(low=90.0, high=110.0),
    expected=Range(low=50.0, high=150.0),
    date="2026-11-26",
)


def test_drafts_that_the_engine_chooses_are_an_arm_of_their_own():
    fixed = replace(CHOICE, are_drafts_fixed=True)
    assert (drafts_of(CHOICE), drafts_of(fixed)) == ("auto", 3)
    assert drafts_of(replace(CHOICE, engine="llama.cpp")) == 3
    assert drafts_of(replace(CHOICE, method="none", head=None, draft_tokens=0)) == 0
    assert measured_for(fixed, [ROW]) == ROW and measured_for(CHOICE, [ROW]) is None


def test_only_the_same_engine_version_head_drafts_and_concurrency_count():
    fixed = replace(CHOICE, are_drafts_fixed=True)
    for changes in (
        {"engine": "vllm"},
        {"version": "0.0.1"},
        {"head": "nvidia-v3"},
        {"draft_tokens": 2},
        {"concurrency": 8},
    ):
        assert measured_for(fixed, [replace(ROW, **changes)]) is None, changes


def test_the_shortest_prompts_count_and_what_has_no_interval_does_not():
    fixed = replace(CHOICE, are_drafts_fixed=True)
    rows = [replace(ROW, context=context) for context in (32_768, 512, 2048)]
    assert measured_for(fixed, rows).context == 512
    assert measured_for(fixed, [replace(ROW, interval=None)]) is None
