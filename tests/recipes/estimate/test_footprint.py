"""Footprints: what a plan declares to take at rest and while it loads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.recipes.support.numbers import GIB

from eyas.base.errors import UserError
from eyas.recipes.estimate.footprint import footprint
from eyas.recipes.planning.planner import Ask, make_plan


def plan(engine, on="spark", **asked):
    return make_plan(Ask(model="gpt-oss-120b", on=on, engine=engine, **asked))


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm", "llama.cpp", "ollama"])
def test_on_unified_memory_processes_and_loading_come_on_top(engine):
    made = plan(engine)
    declared = footprint(made)
    assert declared.steady_bytes == max(made.memory.needed, made.memory.reserved) + made.memory.host
    assert made.memory.host > 0
    assert declared.peak_bytes > declared.steady_bytes


def test_the_dip_that_was_seen_on_a_gb10():
    """17 to 19 GiB after weights of such a size were loaded by an engine on torch."""
    declared = footprint(plan("vllm"))
    assert 17 * GIB <= declared.peak_bytes - declared.steady_bytes <= 19 * GIB


@pytest.mark.parametrize("engine", ["sglang", "vllm", "eyas"])
def test_a_gpu_of_its_own_holds_no_processes(engine):
    made = plan(engine, "h200")
    declared = footprint(made)
    assert made.memory.host == 0
    assert declared.steady_bytes == max(made.memory.needed, made.memory.reserved)
    assert declared.peak_bytes == declared.steady_bytes  # the pool takes what loading gave back


@settings(max_examples=30, deadline=None)
@given(
    on=st.sampled_from(("spark", "2xspark", "h100", "8xb200")),
    engine=st.sampled_from(("sglang", "vllm", "llama.cpp", "ollama", "auto")),
    model=st.sampled_from(("gpt-oss-20b", "gpt-oss-120b")),
    context=st.integers(1, 131_072),
    concurrency=st.integers(1, 64),
)
def test_a_footprint_is_of_what_there_is(on, engine, model, context, concurrency):
    try:
        made = make_plan(Ask(model=model, on=on, engine=engine, context=context, concurrency=concurrency))
    except UserError:
        return
    declared = footprint(made)
    weights = next(row.num_bytes for row in made.memory.rows if row.owner == "weights")
    assert weights < declared.steady_bytes <= declared.peak_bytes
    assert declared.steady_bytes <= made.box.hardware.usable_bytes
    more = replace(made.memory, reserved=made.memory.reserved + GIB)
    assert footprint(replace(made, memory=more)).steady_bytes >= declared.steady_bytes


@pytest.mark.parametrize(("engine", "mebibytes"), [("eyas", 358), ("llama.cpp", 64)])
def test_the_demo_on_a_cpu_declares_about_what_it_was_seen_to_take(engine, mebibytes):
    """PSS of all processes, 2026-11-25; llama-server's copies of conversations come later."""
    made = make_plan(Ask(model="demo", on="cpu", engine=engine, spec="none", context=2048, concurrency=1))
    rows = {row.owner: row.num_bytes for row in made.memory.rows}
    assert made.memory.host == 0 and "libraries" in rows
    declared = footprint(made).steady_bytes - rows.get("prompt cache", 0)
    assert mebibytes <= declared >> 20 <= mebibytes + 256
