"""Published measurements: which are of a plan's setting, how they move its estimate, and the order that they give."""

from itertools import pairwise
from math import log

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.recipes.support.numbers import setup

from eyas.recipes.estimate.memory import memory_map
from eyas.recipes.estimate.published import MOST, Figure, Support, figures, published, support
from eyas.recipes.estimate.speed import decoding, estimate
from eyas.recipes.knowledge.tables import knowledge

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
    assert not list(published(replace(choice, tensor_parallel=2), replace(box, nodes=2), MEASURED))


def test_they_say_how_long_the_context_was():
    """59 and 41.35 tok/s at one request would contradict each other otherwise."""
    choice, box, _, _ = setup("spark", "llama.cpp")
    texts = [row.text for row in published(choice, box, MEASURED)]
    assert any(text.startswith("59 tok/s at 1 after 0 tokens of context") for text in texts)
    assert any(text.startswith("41.35 tok/s at 1 after 32768 tokens of context") for text in texts)


def moved(choice, box, *known, expected=100.0):
    return support(choice, box, known, lambda _: expected)


def figure(**changes):
    same = Figure(
        model="gpt-oss-120b", hardware="spark", engine="vllm", concurrency=1, context=2048, tokens_per_second=120.0
    )
    return replace(same, **changes)


def test_figures_of_the_engine_and_box_move_a_rate():
    choice, box, _, _ = setup("spark", "vllm")
    assert moved(choice, box) == Support(factor=1.0, is_published=False)
    assert moved(choice, box, figure(engine="sglang"), figure(hardware="2xspark")) == moved(choice, box)
    near, far, other = (
        moved(choice, box, figure(**changes)).factor
        for changes in ({}, {"concurrency": 32}, {"concurrency": 32, "model": "gpt-oss-20b"})
    )
    assert 1.2 > near > far > other > 1.0


def test_a_plan_without_drafts_does_not_hear_figures_with_them():
    """Acceptance is in those; a plan with drafts hears both, its own head and number of drafts the most."""
    with_drafts = figure(head="lmsys-120b", draft_tokens=3)
    plain, box, _, _ = setup("spark", "vllm")
    assert not moved(plain, box, with_drafts).is_published
    same, other = (setup("spark", "vllm", head="lmsys-120b", drafts=drafts)[0] for drafts in (3, 1))
    assert moved(same, box, with_drafts).factor > moved(other, box, with_drafts).factor > 1
    assert moved(same, box, figure()).factor > 1


def test_what_is_set_apart_moves_nothing():
    """62.4, 65.2 and 60.7 tok/s of a patched build on hardware that is not named are shown, and that is all."""
    apart = [one for one in MEASURED if one.set_apart]
    assert {"spark-vllm-v3-k1", "spark-vllm-default-c1", "8xh800-vllm-aimo3-c8"} < {one.name for one in apart}
    args = setup("spark", "vllm", head="nvidia-v3", drafts=1)
    alone, beside = estimate(*args), estimate(*args, apart)
    assert beside.tokens_per_second == alone.tokens_per_second
    assert [one.text[:4] for one in beside.published if "patched" in one.text] == ["65.2", "60.7"]


def test_an_engine_for_one_gpu_is_known_on_two():
    choice, box, _, _ = setup("2xh200", "eyas", tensor_parallel=1)
    assert moved(choice, box, figure(engine="eyas", hardware="h200")).is_published
    assert not moved(replace(choice, tensor_parallel=2), box, figure(engine="eyas", hardware="h200")).is_published


def test_each_figure_counts_once():
    """A rate without drafts that stands beside four numbers of drafts is one figure."""
    rows = [one for one in MEASURED if one.hardware == "strix-halo"]
    assert [one.tokens_per_second for one in figures(rows)] == [51.7, 43.7, 38.9, 32.4, 27.7]


def test_engines_on_a_spark_rank_as_published():
    """At 1: llama.cpp 59, vLLM 58.5 (2026), SGLang 52. At 32: llama.cpp 313, vLLM 252.8 and 318.7, SGLang 140.3."""
    engines = ("llama.cpp", "vllm", "sglang")
    one, many = ({name: expected("spark", name, concurrency=n).tokens_per_second for name in engines} for n in (1, 32))
    assert middle(one["llama.cpp"]) == pytest.approx(middle(one["vllm"]), rel=0.2)
    assert min(middle(one["llama.cpp"]), middle(one["vllm"])) >= middle(one["sglang"])
    assert many["sglang"].high < min(many["llama.cpp"].low, many["vllm"].low)
    assert middle(many["llama.cpp"]) == pytest.approx(313, rel=0.25)  # alike prompts share experts
    assert many["vllm"].low < 252.8 < many["vllm"].high
    assert many["sglang"].low < 140.3 < many["sglang"].high


def test_a_head_that_nobody_measured_gains_on_what_was_measured():
    """SGLang and v3 at 32 on a Spark: less than without the 140.3 and 171.9 that were measured there."""
    alone = estimate(*setup("spark", "sglang", head="nvidia-v3", drafts=3, concurrency=32))
    against = expected("spark", "sglang", head="nvidia-v3", drafts=3, concurrency=32)
    assert middle(against.tokens_per_second) < middle(alone.tokens_per_second)
    assert against.tokens_per_second.high < 280
    assert against.speedup == alone.speedup


@given(st.lists(st.floats(1, 10_000), min_size=1, max_size=5))
def test_what_disagrees_counts_as_if_it_differed_by_the_most(said):
    """Ten times the model's rate was of something else. The model counts, so no figure is believed whole."""
    choice, box, _, _ = setup("spark", "vllm")
    found = moved(choice, box, *(figure(tokens_per_second=one) for one in said))
    differs = [min(max(log(one / 100), -MOST), MOST) for one in said]
    assert min(0, *differs) - 1e-9 <= log(found.factor) <= max(0, *differs) + 1e-9


def test_published_boxes_have_narrower_ranges():
    """With drafts they are as wide: a figure of other drafts on that box says little."""
    for drafts in (0, 3):
        args = setup("h200", "vllm", head="lmsys-120b", drafts=drafts)
        alone, beside = estimate(*args).tokens_per_second, estimate(*args, MEASURED).tokens_per_second
        assert beside.high / beside.low <= (1.0 if drafts else 0.9) * alone.high / alone.low + 1e-9


plans = st.fixed_dictionaries(
    {
        "on": st.sampled_from(["spark", "h100", "h200", "b200", "8xh200"]),
        "engine": st.sampled_from(["eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp"]),
        "drafts": st.integers(0, 4),
        "context": st.integers(1, 131_072),
        "concurrency": st.integers(1, 256),
    }
)


@settings(max_examples=60, deadline=None)
@given(plans)
def test_estimates_with_figures_stay_in_order(drawn):
    found = estimate(*setup(**drawn, head="lmsys-120b"), MEASURED)
    assert 0 < found.tokens_per_second.low <= found.tokens_per_second.high
    for one in found.at_context:
        assert 0 < one.tokens_per_second.low <= one.tokens_per_second.high
    if drawn["drafts"] == 0:
        assert found.tokens_per_second == found.baseline_tokens_per_second


@settings(max_examples=60, deadline=None)
@given(plans)
def test_only_requests_that_fit_are_counted(drawn):
    choice, box, model, head = setup(**drawn, head="lmsys-120b")
    room = memory_map(choice, box, model, head).max_tokens
    found = estimate(choice, box, model, head)
    for one in found.at_context:
        assert one.at_once == max(min(choice.concurrency, room // one.context), 1)
        alone = replace(choice, concurrency=one.at_once)
        assert one.tokens_per_second == decoding(alone, box, model, head, one.context, ())
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
