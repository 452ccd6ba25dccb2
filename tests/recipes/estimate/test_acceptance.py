"""Expected acceptance lengths: from measured ones, by engine, purpose and context."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.recipes.support.numbers import setup

from eyas.recipes.estimate.acceptance import chance, expected_acceptance, length
from eyas.recipes.knowledge.tables import knowledge

HEADS = knowledge().heads


def expected(head, drafts, engine="sglang", **changes):
    head = HEADS[head]
    choice, _, _, _ = setup("8xb200", engine, model=head.target, **changes)
    return expected_acceptance(choice, head, drafts)


@given(st.floats(0.01, 0.99), st.integers(1, 8))
def test_chance_undoes_length(p, drafts):
    assert chance(length(p, drafts), drafts) == pytest.approx(p, abs=1e-6)


def test_one_chance_describes_a_measured_chain():
    """vllm-project/vllm#42764: accepted by position .62 .36 .20 .12 .06 with five drafts."""
    measured = [0.62, 0.36, 0.20, 0.12, 0.06]
    p = chance(1 + sum(measured), 5)
    for drafts in range(1, 6):
        assert length(p, drafts) == pytest.approx(1 + sum(measured[:drafts]), rel=0.03)


def test_v3_measured_at_three_and_seven_agree():
    """SGLang with 3 drafts: 2.68-2.72; the card with 7: 2.95."""
    assert length(chance(2.95, 7), 3) == pytest.approx(2.70, rel=0.15)


def test_measured_ones_come_back():
    within = expected("lmsys-120b", 3)
    assert within.low < 2.4 < within.high
    assert within.high - within.low < 0.2


def test_the_engine_counts():
    """vLLM reads the LMSYS head's taps one layer lower and accepts 1.6 instead of 2.4."""
    assert expected("lmsys-120b", 3, "vllm").high < 1.8 < expected("lmsys-120b", 3, "sglang").low


def test_the_purpose_counts():
    chat, code = (expected("redhat-120b", 5, "vllm", purpose=purpose) for purpose in ("chat", "claude-code"))
    assert code.low > chat.low


def test_measured_numbers_of_drafts_bound_those_between():
    """v3 with SGLang: 2.68 to 2.72 with 3 drafts; the card's 2.95 to 3.28 with 7 are for any engine."""
    three, five, seven = (expected("nvidia-v3", drafts) for drafts in (3, 5, 7))
    assert three.low < 2.68 < 2.72 < three.high
    assert (seven.low, seven.high) == pytest.approx((2.95, 3.28), abs=0.01)
    assert three.high < five.low < five.high < seven.high  # no bulge above what seven give


def test_a_longer_chain_is_not_better_at_drafting():
    """v3 with vLLM: 1.61 with 1 draft and 1.96 with 2 by a third party, 2.95 to 3.28 with 7 by the card."""
    one, two, seven = (expected("nvidia-v3", drafts, "vllm") for drafts in (1, 2, 7))
    assert one.low == pytest.approx(1.61, abs=0.01)
    assert two.low == pytest.approx(1.96, abs=0.02)
    assert seven.low < length(chance(1.61, 1), 7) < 2.95
    assert seven.high == pytest.approx(3.28, abs=0.01)
    assert one.high == pytest.approx(1 + chance(3.28, 7), abs=0.01)


def test_contexts_that_a_head_is_not_meant_for_accept_less():
    for head, good, bad in (("lmsys-120b", 4096, 65_536), ("nvidia-long-context", 65_536, 1024)):
        inside, outside = (expected(head, 3, context=context) for context in (good, bad))
        assert outside.low < inside.low
        assert outside.high < inside.high


def test_the_throughput_head_drafts_one_token():
    assert expected("nvidia-throughput", 1).low == pytest.approx(1.75, abs=0.05)
    three = expected("nvidia-throughput", 3, "vllm")  # 1.25 measured
    assert three.low < 1.26 < three.high


def test_far_beyond_what_a_head_has_seen_it_earns_next_to_nothing():
    inside, near, far = (expected("lmsys-120b", 3, context=context).high - 1 for context in (8192, 16_384, 32_768))
    assert far < 0.25 * inside < 0.5 * near


@given(
    st.sampled_from(list(HEADS)),
    st.integers(1, 8),
    st.sampled_from(["sglang", "vllm", "tensorrt-llm", "eyas", "llama.cpp"]),
    st.integers(1, 131_072),
    st.sampled_from(["chat", "claude-code", "discord", "batch"]),
)
def test_lengths_stay_between_one_and_all(head, drafts, engine, context, purpose):
    within = expected(head, drafts, engine, context=context, purpose=purpose)
    assert 1 <= within.low <= within.high <= drafts + 1


@given(
    st.sampled_from(list(HEADS)),
    st.integers(1, 7),
    st.sampled_from(["sglang", "vllm", "tensorrt-llm", "eyas", "llama.cpp"]),
    st.sampled_from([1024, 8192, 65_536]),
    st.sampled_from(["chat", "claude-code", "discord", "batch"]),
)
def test_another_draft_never_gives_less(head, drafts, engine, context, purpose):
    """Up to as many as the head can draft; more are known to hurt."""
    fewer, more = (expected(head, n, engine, context=context, purpose=purpose) for n in (drafts, drafts + 1))
    if drafts + 1 <= (HEADS[head].max_draft_tokens or drafts + 1):
        assert fewer.low <= more.low
        assert fewer.high <= more.high <= fewer.high + 1
