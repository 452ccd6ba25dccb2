"""The memory model: against pools that SGLang's own tests assert, footprints that were seen, and its properties."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.recipes.support.numbers import GIB, setup

from eyas.recipes.estimate.kv import kv_layout
from eyas.recipes.estimate.memory import default_fraction, engine_fraction, fitting, memory_map
from eyas.recipes.knowledge.tables import knowledge

MODELS = ("gpt-oss-20b", "gpt-oss-120b")
ENGINES = ("eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp", "ollama")
BOXES = ("spark", "2xspark", "rtx-5090", "rtx-pro-6000", "h100", "8xh200", "8xb200")


def rows(memory):
    return {row.owner: row.num_bytes for row in memory.rows}


# SGLang nightly CI, gpt-oss-120b with EAGLE-3 on 8 GPUs: tokens, GiB of the target's pools, GiB of the head's
CI_POOLS = [("8xb200", 17_114_423, 132.2046, 8.1576), ("8xh200", 13_376_204, 103.3263, 6.3756)]


@pytest.mark.parametrize(("on", "tokens", "pools", "head_pool"), CI_POOLS)
def test_pools_of_sglangs_ci(on, tokens, pools, head_pool):
    layout = kv_layout(*setup(on, "sglang", head="lmsys-120b", drafts=3, version="0.5.10"))
    assert layout.target_bytes(tokens, 1) / GIB == pytest.approx(pools, rel=0.01)
    assert layout.head_bytes(tokens) / GIB == pytest.approx(head_pool, rel=0.01)


@pytest.mark.parametrize(("on", "tokens"), [pool[:2] for pool in CI_POOLS])
def test_how_many_tokens_sglangs_ci_gets(on, tokens):
    """From the size of the GPU alone, with the CI's --mem-fraction-static; nothing is fitted to these."""
    args = setup(on, "sglang", head="lmsys-120b", drafts=3, version="0.5.10", memory_fraction=0.85, concurrency=100)
    assert memory_map(*args).max_tokens == pytest.approx(tokens, rel=0.01)


def test_before_0_5_10_windowed_layers_keep_every_token():
    def kv(version):
        choice, box, model, _ = setup("spark", "sglang", version=version, context=40_960)
        return rows(memory_map(choice, box, model, None))["KV cache"]

    assert kv("0.5.9") == 40_960 * 73_728
    assert kv("0.5.10") == pytest.approx(40_960 * 66_355, rel=1e-4)


def test_the_guides_84_gb():
    """The Spark guide's 67 + 3 + 3 + 11: what it measured was what SGLang reserves, with the head counted twice.

    67 are weights and head together (65.2 + 1.8), the KV cache is that of all 36 layers for 40K tokens, and 3 + 11 are
    what SGLang leaves free on a GPU of this size (the guide's own summary says "14 GB overhead").
    """
    choice, box, model, head = setup("spark", "sglang", head="lmsys-120b", drafts=3, version="0.5.6", context=40_960)
    ours = rows(memory_map(choice, box, model, head))
    weights_and_head = (ours["weights"] + ours["draft head"]) / 1e9
    plain = replace(choice, method="none", head=None, draft_tokens=0)
    left_free = (1 - engine_fraction(plain, box)) * box.hardware.usable_bytes / 1e9
    assert weights_and_head == pytest.approx(67, abs=0.1)
    assert ours["KV cache"] / 1e9 == pytest.approx(3, abs=0.1)
    assert left_free == pytest.approx(14, abs=0.2)
    assert weights_and_head + ours["KV cache"] / 1e9 + left_free == pytest.approx(84, abs=0.5)
    needed = memory_map(choice, box, model, head).needed / 1e9
    assert needed == pytest.approx(73.4, abs=0.5)  # what this context needs; the rest was taken because it was there


@pytest.mark.parametrize(
    ("args", "gigabytes"),
    [
        (setup("spark", "sglang", head="lmsys-120b", drafts=3, version="0.5.6"), 114.1),  # Spark sweep 2026-06
        (setup("spark", "vllm", memory_fraction=0.85), 107),  # recipes 5.3
    ],
)
def test_what_engines_were_seen_to_take(args, gigabytes):
    assert memory_map(*args).reserved / 1e9 == pytest.approx(gigabytes, rel=0.025)


def test_llama_cpp_was_seen_to_need_67_gib():
    """Before it had kept any conversation: -c 131072, two slots."""
    choice, box, model, _ = setup("spark", "llama.cpp", context=65_536, concurrency=2)
    memory = memory_map(choice, box, model, None)
    assert (memory.needed - rows(memory)["prompt cache"]) / GIB == pytest.approx(67, rel=0.02)


@pytest.mark.parametrize(("slots", "context", "gib"), [(1, 65_536, 2.33), (32, 4096, 7.03), (128, 2048, 18.0)])
def test_each_slot_of_llama_cpp_keeps_its_own_windows(slots, context, gib):
    """src/llama-kv-cache-iswa.cpp: min(context, window + 2048, to 256 cells) of each slot; worked out by hand."""
    choice, box, model, _ = setup("spark", "llama.cpp", context=context, concurrency=slots)
    assert rows(memory_map(choice, box, model, None))["KV cache"] / GIB == pytest.approx(gib, abs=0.005)


def test_llama_cpps_copies_are_planned_where_they_share_the_gpus_memory():
    def copies(on, **changes):
        return rows(memory_map(*setup(on, "llama.cpp", **changes))).get("prompt cache", 0)

    assert copies("h100", concurrency=32) == 0
    assert copies("spark") == 3829 * (1 << 20) + 8 * 128 * 36_864
    assert copies("spark", concurrency=32) == 3829 * (1 << 20) + 32 * 8 * 128 * 36_864
    one_head = knowledge().heads["ggml-120b"].kv_bytes_per_token
    assert copies("spark", head="ggml-120b", drafts=1) - copies("spark") == 8 * 8192 * one_head


@pytest.mark.parametrize(
    ("on", "engine", "version", "factor"),
    [
        ("b200", "sglang", "0.5.10", (3072 / 2880) ** 2),  # both dimensions: +13.8 %
        ("8xb200", "sglang", "0.5.10", 3072 / 2880 * 512 / 360),  # a slice of 360 becomes 512
        ("h100", "sglang", "0.5.23", 1.0),
        ("spark", "vllm", "0.33.0", 3072 / 2880 * 2944 / 2880),
        ("spark", "llama.cpp", "b10488", 1.0),
    ],
)
def test_experts_are_padded_as_the_kernels_do(on, engine, version, factor):
    choice, box, model, _ = setup(on, engine, version=version)
    padding = rows(memory_map(choice, box, model, None)).get("expert padding", 0)
    experts = 128 * 36 * model.expert_bytes / choice.tensor_parallel
    assert padding / experts == pytest.approx(factor - 1, abs=1e-3)


def test_the_checkpoints_own_index_counts():
    choice, box, model, _ = setup("h200", "sglang")
    assert rows(memory_map(choice, box, model, None, weight_bytes=70_000_000_000))["weights"] == 70_000_000_000


def test_more_gpus_than_kv_heads_each_hold_one():
    one = kv_layout(*setup("2xspark", "tensorrt-llm", model="qwen3-235b-a22b-fp4"))
    many = kv_layout(*setup("8xb200", "tensorrt-llm", model="qwen3-235b-a22b-fp4"))
    assert many.full == 94 * 2 * 128 * 2  # one of 4 heads, not half a one
    assert one.full == 94 * 2 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("on", "model", "engine", "fits"),
    [
        ("spark", "gpt-oss-120b", "sglang", True),
        ("spark", "qwen3-235b-a22b-fp4", "tensorrt-llm", False),  # the playbook: needs two
        ("2xspark", "qwen3-235b-a22b-fp4", "tensorrt-llm", True),
        ("rtx-5090", "gpt-oss-120b", "vllm", False),
        ("rtx-5090", "gpt-oss-20b", "vllm", True),
        ("h100", "gpt-oss-120b", "sglang", True),
        ("spark", "llama-3.3-70b-fp4", "tensorrt-llm", True),
    ],
)
def test_what_is_known_to_fit(on, model, engine, fits):
    choice, box, record, _ = setup(on, engine, model=model, context=1024)
    choice = replace(choice, memory_fraction=default_fraction(choice, box, record, None))
    assert memory_map(choice, box, record, None).fits is fits
    assert (fitting(choice, box, record, None).max_context > 0) is fits


def test_fractions_of_published_recipes():
    def fraction(on, engine, **changes):
        return default_fraction(*setup(on, engine, head="lmsys-120b", drafts=3, **changes))

    assert fraction("spark", "sglang") == fraction("spark", "vllm") == 0.80
    assert fraction("8xh200", "sglang") == fraction("8xb200", "sglang") == 0.85
    assert fraction("spark", "tensorrt-llm") == 0.90
    assert fraction("8xb200", "tensorrt-llm") == 0.80
    assert fraction("h100", "sglang", context=32_768, concurrency=64) == pytest.approx(0.95, abs=0.011)  # all there is
    assert fraction("spark", "llama.cpp") is None


plans = st.fixed_dictionaries(
    {
        "on": st.sampled_from(BOXES),
        "engine": st.sampled_from(ENGINES),
        "model": st.sampled_from(MODELS),
        "context": st.integers(1, 131_072),
        "concurrency": st.integers(1, 256),
        "memory_fraction": st.none() | st.floats(0.3, 0.95),
    }
)


def plan(drawn, **changes):
    has_head = drawn["engine"] != "ollama"
    head = ("lmsys-20b" if drawn["model"] == "gpt-oss-20b" else "lmsys-120b") if has_head else None
    return setup(**{**drawn, **changes}, head=head, drafts=3 if has_head else 0)


@settings(max_examples=60, deadline=None)
@given(plans, st.integers(0, 100_000), st.integers(0, 100))
def test_more_never_needs_less(drawn, tokens, requests):
    needed = memory_map(*plan(drawn)).needed
    longer = memory_map(*plan(drawn, context=drawn["context"] + tokens)).needed
    wider = memory_map(*plan(drawn, concurrency=drawn["concurrency"] + requests)).needed
    larger = memory_map(*plan(drawn, model="gpt-oss-120b")).needed
    assert needed <= min(longer, wider, larger)


@settings(max_examples=60, deadline=None)
@given(plans)
def test_fp8_never_needs_more(drawn):
    plain, fp8 = memory_map(*plan(drawn)), memory_map(*plan(drawn, kv_dtype="fp8"))
    assert fp8.needed <= plain.needed
    assert fp8.max_tokens >= plain.max_tokens


@settings(max_examples=60, deadline=None)
@given(plans)
def test_what_fits_stays_below_capacity(drawn):
    choice, box, model, head = plan(drawn)
    memory = memory_map(choice, box, model, head)
    assert memory.capacity <= box.hardware.usable_bytes - box.hardware.os_reserve_bytes
    fits = fitting(choice, box, model, head)
    if fits.max_context:
        at_most = memory_map(replace(choice, context=fits.max_context), box, model, head)
        assert at_most.needed <= at_most.capacity
    if fits.max_context < model.native_context:
        assert not memory_map(replace(choice, context=fits.max_context + 1), box, model, head).fits
    if fits.max_concurrency:
        assert memory_map(replace(choice, concurrency=fits.max_concurrency), box, model, head).fits
    assert memory.fits == (fits.max_context >= choice.context) == (fits.max_concurrency >= choice.concurrency)


@settings(max_examples=60, deadline=None)
@given(plans)
def test_nothing_takes_more_than_there_is(drawn):
    choice, box, model, head = plan(drawn)
    memory = memory_map(choice, box, model, head)
    assert 0 < memory.reserved <= box.hardware.usable_bytes
    if memory.fits and choice.engine in ("eyas", "llama.cpp", "ollama"):
        assert memory.reserved >= memory.needed - len(memory.rows)  # each row is rounded up


@settings(max_examples=60, deadline=None)
@given(plans)
def test_max_tokens_is_where_it_stops_to_fit(drawn):
    choice, box, model, head = plan(drawn, concurrency=1)
    memory = memory_map(choice, box, model, head)
    if memory.max_tokens > choice.context:
        assert memory.fits
    elif memory.max_tokens < choice.context - 1:
        assert not memory.fits


@settings(max_examples=60, deadline=None)
@given(plans)
def test_default_fraction_leaves_room_for_the_rest(drawn):
    choice, box, model, head = plan(drawn)
    fraction = default_fraction(choice, box, model, head)
    if fraction is None:
        assert choice.engine in ("eyas", "llama.cpp", "ollama")
        return
    assert 0 < fraction <= 0.99
    memory = memory_map(replace(choice, memory_fraction=fraction), box, model, head)
    if memory.fits:
        assert memory.reserved <= box.hardware.usable_bytes - box.hardware.os_reserve_bytes


def test_every_head_has_a_map_on_each_of_its_engines():
    for head in knowledge().heads.values():
        for engine in head.engines:
            on = "h200" if engine in ("eyas", "llama.cpp") else "8xb200"
            memory = memory_map(*setup(on, engine, model=head.target, head=head.name, drafts=1))
            assert all(row.num_bytes > 0 for row in memory.rows)
            assert memory.fits
