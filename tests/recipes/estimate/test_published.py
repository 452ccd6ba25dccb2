"""Published measurements: which are of a plan's setting, how they narrow its estimate, and the order that they give."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.recipes.support.numbers import setup

from eyas.recipes.estimate.memory import memory_map
from eyas.recipes.estimate.published import Known, drafted, narrowed, pessimism_of, plain, published
from eyas.recipes.estimate.speed import estimate, rate
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Range

KNOWN = knowledge()
MEASURED = KNOWN.measurements


def middle(within):
    return (within.low * within.high) ** 0.5


def expected(on, engine, **changes):
    return estimate(*setup(on, engine, **changes), MEASURED)


def test_they_are_of_the_same_setting():
    choice, box, _, _ = setup("spark", "sglang", head="lmsys-120b", drafts=3)
    rows = list(published(choice, box, MEASURED))
    assert rows[0].text.startswith(("52.37 tok/s", "40.56 tok/s"))
    assert any("171.9 tok/s at 32 with 3 drafts of lmsys-120b, 140.3 without" in row.text for row in rows)
    assert not any("vllm" in row.text.lower() for row in rows)
    assert not list(published(choice, replace(box, nodes=2), MEASURED))


def test_they_say_how_long_the_context_was():
    """59 and 41.35 tok/s at one request would contradict each other otherwise."""
    choice, box, _, _ = setup("spark", "llama.cpp")
    texts = [row.text for row in published(choice, box, MEASURED)]
    assert any(text.startswith("59 tok/s at 1 after 0 tokens of context") for text in texts)
    assert any(text.startswith("41.35 tok/s at 1 after 32768 tokens of context") for text in texts)


@pytest.mark.parametrize(
    ("on", "engine", "concurrency", "said"),
    [
        ("spark", "vllm", 1, 58.5),  # newer than the playbook's 33.5
        ("spark", "vllm", 24, 252.8),  # newer than 318.7
        ("spark", "sglang", 32, 140.3),  # beside one with a head
        ("spark", "llama.cpp", 1, 59.0),  # not that at 32768 tokens of context
        ("spark", "sglang", 8, None),  # 1 and 32 are too far
        ("b200", "vllm", 1, 369),  # what P-EAGLE was compared with, not its own 561
        ("2xspark", "sglang", 1, None),
    ],
)
def test_the_nearest_without_drafts(on, engine, concurrency, said):
    choice, box, _, _ = setup(on, engine, concurrency=concurrency)
    known = plain(choice, box, MEASURED)
    assert (known.tokens_per_second if known else None) == said


def test_with_drafts_head_and_number_must_agree():
    def known(head, drafts):
        choice, box, _, _ = setup("spark", "sglang", head=head, drafts=drafts, concurrency=32)
        found = drafted(choice, box, MEASURED)
        return found.tokens_per_second if found else None

    assert known("lmsys-120b", 3) == 171.9
    assert known("lmsys-120b", 1) is known("nvidia-v3", 3) is None


def test_engines_on_a_spark_rank_as_published():
    """At 1: llama.cpp 59, vLLM 58.5 (2026), SGLang 52. At 32: llama.cpp 313, vLLM 252.8 and 318.7, SGLang 140.3."""
    engines = ("llama.cpp", "vllm", "sglang")
    one, many = ({name: expected("spark", name, concurrency=n).tokens_per_second for name in engines} for n in (1, 32))
    assert middle(one["llama.cpp"]) == pytest.approx(middle(one["vllm"]), rel=0.2)
    assert min(middle(one["llama.cpp"]), middle(one["vllm"])) >= middle(one["sglang"])
    assert many["sglang"].high < min(many["llama.cpp"].low, many["vllm"].low)
    assert many["llama.cpp"].low < 313 < many["llama.cpp"].high
    assert many["vllm"].low < 252.8 < many["vllm"].high
    assert many["sglang"].low < 140.3 < many["sglang"].high


def test_a_head_that_nobody_measured_gains_on_what_was_measured():
    """SGLang and v3 at 32 on a Spark: from 140.3 without, not from the 287 that the whole range would allow."""
    alone = estimate(*setup("spark", "sglang", head="nvidia-v3", drafts=3, concurrency=32))
    against = expected("spark", "sglang", head="nvidia-v3", drafts=3, concurrency=32)
    assert alone.tokens_per_second.high > 380
    assert against.tokens_per_second.high < 280
    assert middle(against.tokens_per_second) < middle(expected("spark", "vllm", concurrency=32).tokens_per_second)
    assert against.speedup == alone.speedup


def test_what_disagrees_changes_nothing():
    """A lone SGLang with the LMSYS head: 40.56; ten times as much would be of something else."""
    args = setup("spark", "sglang", head="lmsys-120b", drafts=3)
    tenfold = [replace(one, tokens_per_second=405.6, hardware="spark") for one in MEASURED if one.engine == "sglang"]
    assert estimate(*args, tenfold).tokens_per_second == estimate(*args).tokens_per_second
    assert narrowed(Range(low=10, high=20), 40.56) == Range(low=10, high=20)
    assert pessimism_of(Known(concurrency=1, context=0, tokens_per_second=100), lambda end: 10 - end) == (0.0, 1.0)


@given(st.floats(1, 100), st.floats(1, 3), st.floats(1, 300))
def test_narrowed_ranges_are_within(low, width, said):
    whole = Range(low=low, high=low * width)
    within = narrowed(whole, said)
    assert whole.low <= within.low <= within.high <= whole.high
    if whole.low <= said <= whole.high:
        assert within.low <= said <= within.high


@given(st.floats(1, 1000), st.floats(0.01, 5), st.floats(0.1, 2000))
def test_the_part_that_agrees(fastest, slowing, said):
    def speed(end):
        return fastest / (1 + slowing * end)

    good, bad = pessimism_of(Known(concurrency=1, context=0, tokens_per_second=said), speed)
    assert 0 <= good <= bad <= 1
    if (good, bad) != (0, 1):
        assert speed(good) <= 1.25 * said * (1 + 1e-6)
        assert speed(bad) >= 0.8 * said * (1 - 1e-6)


def test_each_measurement_lies_in_its_own_estimate_or_near():
    """Of those without drafts, and no estimate is wider than without them."""
    for one in MEASURED:
        args = setup(one.hardware, one.engine, model=one.model, concurrency=one.concurrency)
        whole, within = (estimate(*args, some).baseline_tokens_per_second for some in ((), MEASURED))
        assert whole.low <= within.low <= within.high <= whole.high, one.name
        if plain(args[0], args[1], [one]) is not None and not one.draft_tokens and one.context is None:
            said = one.tokens_per_second
            alone = estimate(*args, [one]).baseline_tokens_per_second
            if whole.low <= said <= whole.high:
                assert alone.low <= said <= alone.high, one.name


plans = st.fixed_dictionaries(
    {
        "on": st.sampled_from(["spark", "h100", "h200", "b200", "8xh200"]),
        "engine": st.sampled_from(["eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp"]),
        "drafts": st.integers(0, 4),
        "context": st.integers(1, 131_072),
        "concurrency": st.integers(1, 256),
    }
)


@settings(max_examples=100, deadline=None)
@given(plans)
def test_narrowed_estimates_stay_in_order(drawn):
    args = setup(**drawn, head="lmsys-120b")
    whole, within = estimate(*args), estimate(*args, MEASURED)
    for name in ("tokens_per_second", "baseline_tokens_per_second"):
        wide, narrow = getattr(whole, name), getattr(within, name)
        assert 0 < wide.low * (1 - 1e-9) <= narrow.low <= narrow.high <= wide.high * (1 + 1e-9)
    for one in within.at_context:
        assert 0 < one.tokens_per_second.low <= one.tokens_per_second.high
    if drawn["drafts"] == 0:
        assert within.tokens_per_second == within.baseline_tokens_per_second


@settings(max_examples=100, deadline=None)
@given(plans)
def test_only_requests_that_fit_are_counted(drawn):
    choice, box, model, head = setup(**drawn, head="lmsys-120b")
    room = memory_map(choice, box, model, head).max_tokens
    found = estimate(choice, box, model, head)
    for one in found.at_context:
        assert one.at_once == max(min(choice.concurrency, room // one.context), 1)
        alone = replace(choice, concurrency=one.at_once)
        assert one.tokens_per_second == rate(alone, box, model, head, drawn["drafts"], one.context)
    assert all(before.at_once >= after.at_once for before, after in pairwise(found.at_context))


def test_128_full_contexts_do_not_run_at_once_on_one_h100():
    args = setup("h100", "vllm", context=32_768, concurrency=128, memory_fraction=0.95)
    full = estimate(*args).at_context[-1]
    few = estimate(*setup("h100", "vllm", context=32_768, concurrency=full.at_once, memory_fraction=0.95))
    assert 4 <= full.at_once <= 12
    assert full.tokens_per_second == few.at_context[-1].tokens_per_second
    assert estimate(*args, max_tokens=32_768 * 3).at_context[-1].at_once == 3


def test_other_builds_of_a_model_count_with_their_own_bytes():
    """Ollama's qwen3-coder is a 4-bit file of 18.6 GB, the checkpoint has 61.1 in bf16; MXFP4 stays what it is."""
    ollama, vllm = (setup("spark", engine, model="qwen3-coder-30b-a3b") for engine in ("ollama", "vllm"))
    assert memory_map(*ollama).rows[0].num_bytes == 18_600_000_000
    assert memory_map(*vllm).rows[0].num_bytes == ollama[2].total_bytes
    assert estimate(*ollama).round_bytes == pytest.approx(estimate(*vllm).round_bytes * 0.3, rel=0.1)
    same = [estimate(*setup("spark", engine)).round_bytes for engine in ("ollama", "vllm")]
    assert same[0] == same[1]
