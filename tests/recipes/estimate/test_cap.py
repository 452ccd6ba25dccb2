"""A cap on what an engine takes: every plan that is accepted keeps it, counted from the command that it starts."""

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.recipes.support.numbers import GIB, setup

from eyas.base.errors import UserError
from eyas.recipes.estimate.footprint import footprint
from eyas.recipes.estimate.memory import POOLED, default_fraction, memory_map
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.planning.plain import without_speculation
from eyas.recipes.planning.planner import Ask, make_plan

BOXES = ("spark", "2xspark", "rtx-5090", "rtx-pro-6000", "h100", "8xh200", "8xb200")
ENGINES = ("auto", "eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp", "ollama")
SPARK = 128_501_256_192

asks = st.fixed_dictionaries(
    {
        "on": st.sampled_from(BOXES),
        "engine": st.sampled_from(ENGINES),
        "model": st.sampled_from(("gpt-oss-20b", "gpt-oss-120b", "qwen3-235b-a22b-fp4")),
        "context": st.integers(1, 40_000),
        "concurrency": st.integers(1, 64),
        "memory": st.floats(0.1, 100, allow_subnormal=False).map(lambda percent: f"{percent:.3f}%"),
    }
)


def planned(asked):
    try:
        return make_plan(Ask(**asked))
    except UserError as error:
        assert "\n" not in str(error)
        return None


def from_the_command(plan):
    """Bytes that the engine's own rule makes of the share in its command; None for engines without one."""
    usable = plan.box.hardware.usable_bytes
    words = [word for launch in plan.emission.launches for word in launch.argv]
    rows = {row.owner: row.num_bytes for row in plan.memory.rows}
    work = rows["activations and CUDA graphs"] + rows["CUDA and libraries"]
    if plan.choice.engine == "sglang":  # of all memory, for weights and KV cache; the rest is outside of it
        return float(words[words.index("--mem-fraction-static") + 1]) * usable + work
    if plan.choice.engine == "vllm":  # of all memory, for everything
        files = {key: value for file in plan.emission.files for key, value in yaml.safe_load(file.content).items()}
        option = "gpu-memory-utilization"
        share = files[option] if files else words[words.index(f"--{option}") + 1]
        return float(share) * usable
    if plan.choice.engine == "tensorrt-llm":  # of what the weights leave, for the KV cache
        (config,) = (yaml.safe_load(file.content) for file in plan.emission.files if file.path.endswith("llm.yaml"))
        weights = sum(rows.get(owner, 0) for owner in ("weights", "expert padding", "draft head"))
        left = usable - plan.box.hardware.os_reserve_bytes - weights - work
        return weights + work + config["kv_cache_config"]["free_gpu_memory_fraction"] * left
    return None


@settings(max_examples=30, deadline=None)
@given(asks)
@example(
    {"on": "spark", "engine": "sglang", "model": "gpt-oss-120b", "context": 32768, "concurrency": 4, "memory": "90GiB"}
)
@example(
    {"on": "2xspark", "engine": "vllm", "model": "gpt-oss-120b", "context": 32768, "concurrency": 4, "memory": "60%"}
)
@example(
    {"on": "8xb200", "engine": "tensorrt-llm", "model": "gpt-oss-120b", "context": 9, "concurrency": 4, "memory": "40%"}
)
def test_no_plan_takes_more_than_its_cap(asked):
    plan = planned(asked)
    assume(plan is not None)
    cap = plan.choice.memory_cap
    assert cap == plan.memory.cap <= plan.box.hardware.usable_bytes
    assert footprint(plan).steady_bytes <= cap
    assert plan.memory.reserved + plan.memory.host <= cap
    taken = from_the_command(plan)
    if taken is None:
        assert plan.memory.needed <= cap - plan.memory.host
    else:
        assert taken + plan.memory.host <= cap
    if plan.memory.fits:
        assert max(plan.memory.needed, plan.memory.reserved) + plan.memory.host <= cap
    assert any("--memory" in note.text for note in plan.reasons)
    if plan.choice.head is not None:
        assert footprint(without_speculation(plan)).steady_bytes <= cap


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(BOXES),
    st.sampled_from(ENGINES[1:]),
    st.integers(1, 131_072),
    st.integers(1, 64),
    st.floats(0.01, 1),
    st.floats(0, 0.2),
)
def test_a_higher_cap_never_holds_less(on, engine, context, concurrency, share, more):
    def fits(cap):
        choice, box, model, head = setup(on, engine, context=context, concurrency=concurrency, memory_cap=cap)
        choice = replace(choice, memory_fraction=default_fraction(choice, box, model, head))
        memory = memory_map(choice, box, model, head)
        return memory.max_tokens, memory.fits

    usable = parse_box(on).hardware.usable_bytes
    lower, higher = fits(int(share * usable)), fits(int((share + more) * usable))
    step = 0.001 * usable / 1000  # tokens of one step of the share, at most: a token has more than 1,000 bytes
    assert higher[0] >= lower[0] - step and higher[1] >= lower[1]


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_no_cap_and_one_that_is_all_there_is_are_alike(engine):
    """But for what the processes take besides, which is the system's share where nothing else is said."""
    plain, capped = (
        make_plan(Ask(model="gpt-oss-120b", on="h200" if engine == "eyas" else "b200", engine=engine, memory=memory))
        for memory in (None, "100%")
    )
    assert plain.memory.rows == capped.memory.rows
    assert capped.memory.reserved == pytest.approx(plain.memory.reserved, rel=0.02)


def test_a_cap_leaves_the_share_where_it_does_not_bind():
    free, capped = (make_plan(Ask(model="20b", on="spark", engine="vllm", memory=one)) for one in (None, "110GiB"))
    assert capped.choice.memory_fraction == free.choice.memory_fraction == 0.8


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"engine": "llama.cpp", "memory": "70GiB"},
            ("needs 70.47 GiB", "--memory 70.00 GiB leaves it 69.50 GiB", "what fits: --context"),
        ),
        (
            {"engine": "eyas", "on": "h200", "memory": "63GiB", "spec": "none"},
            ("needs", "--memory 63.00 GiB", "what fits"),
        ),
        ({"engine": "ollama", "memory": "64GiB"}, ("needs", "leaves it 63.50 GiB", "what fits")),
        ({"engine": "sglang", "memory": "67GiB"}, ("takes at least 69.33 GiB", "--memory allows 67.00 GiB")),
        ({"memory": "40GiB"}, ("gpt-oss-120b takes at least 62", "--memory allows 40.00 GiB")),
        ({"memory": "900GiB"}, ("--memory wants", "at most the 119.68 GiB of spark, got 900GiB")),
        ({"on": "8xb200", "memory": "1TB"}, ("of a GPU of 8xb200",)),
        ({"memory": "0GiB"}, ("--memory wants more than nothing",)),
        ({"memory": "90"}, ("--memory wants a size with its unit", "'90'")),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers(asked, said):
    with pytest.raises(UserError) as raised:
        make_plan(Ask(**{"model": "gpt-oss-120b", "on": "spark"} | asked))
    assert "\n" not in str(raised.value)
    assert [text for text in said if text not in str(raised.value)] == []


@pytest.mark.parametrize(("engine", "memory"), [("llama.cpp", "72GiB"), ("eyas", "66GiB"), ("ollama", "66GiB")])
def test_what_is_offered_instead_is_accepted(engine, memory):
    on = "h200" if engine == "eyas" else "spark"
    asked = {"model": "gpt-oss-120b", "on": on, "engine": engine, "spec": "none", "memory": memory}
    with pytest.raises(UserError) as raised:
        make_plan(Ask(**asked, context=131_072, concurrency=8))
    offers = str(raised.value).partition("what fits: ")[2].split(", or ")
    assert offers
    for offer in offers:
        flag, value = offer.split()[:2]
        changed = {"context": 131_072, "concurrency": 8} | {flag.removeprefix("--"): int(value)}
        assert footprint(make_plan(Ask(**asked, **changed))).steady_bytes <= float(memory.removesuffix("GiB")) * GIB


def test_requests_wait_for_room_in_a_pool_alone():
    """What a pool's requests need in sum may be more than it has; eyas would take it."""
    asked = {"model": "20b", "on": "h100", "spec": "none", "context": 131_072, "concurrency": 64, "memory": "30GiB"}
    plan = make_plan(Ask(**asked, engine="sglang"))
    assert plan.memory.needed > 30 * GIB >= footprint(plan).steady_bytes
    assert any("of full length fit at once" in note.text for note in plan.warnings)
    with pytest.raises(UserError, match="what fits"):
        make_plan(Ask(**asked, engine="eyas"))


def test_the_120b_of_a_spark_leaves_room_for_others():
    """Without a cap it takes 91 % with the system's share; under one, all together stay below what is said."""
    box = parse_box("spark")
    before = make_plan(Ask(model="gpt-oss-120b", on="spark", engine="sglang"))
    assert (before.memory.reserved + box.hardware.os_reserve_bytes) / SPARK == pytest.approx(0.91, abs=0.005)
    assert set(POOLED) == {"sglang", "vllm", "tensorrt-llm"}
    for engine in POOLED:
        plan = make_plan(Ask(model="gpt-oss-120b", on="spark", engine=engine, memory="82GiB"))
        system = box.hardware.os_reserve_bytes
        assert (footprint(plan).steady_bytes + system) / SPARK < 0.77  # 3.6 GiB to 80 % for others
        assert plan.memory.fits
