"""Each rule of tuning advice fires on one plan and stays silent on another, both written down by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from eyas.recipes.advice.facts import Facts
from eyas.recipes.advice.tuning import advice, rules

SPARK = Facts(
    engine="sglang",
    version="0.5.23",
    model="gpt-oss-120b",
    hardware="spark",
    compute_capability="12.1",
    unified=True,
    bandwidth=273e9,
    memory_bytes=137_438_953_472,
    method="none",
    context=16384,
    concurrency=1,
    features=frozenset({"flag:--mem-fraction-static"}),
)
H100 = replace(SPARK, hardware="h100", compute_capability="9.0", unified=False, bandwidth=3.35e12)
B200 = replace(SPARK, hardware="b200", compute_capability="10.0", unified=False, bandwidth=8e12)
EAGLE = {"method": "eagle3", "head": "lmsys-120b", "draft_tokens": 3}


def changed(facts=SPARK, *features, **changes):
    return replace(facts, **changes, features=facts.features | set(features))


OLLAMA = changed(engine="ollama", version="0.33.0")
LLAMA = changed(engine="llama.cpp", version="b10488")
TRT = changed(engine="tensorrt-llm", version="1.3.0rc13")
VLLM = changed(engine="vllm", version="0.33.0")
EYAS = changed(engine="eyas", version="0.1.0")
NO_REUSE = "yaml:kv_cache_config.enable_block_reuse=false"

# Name: a plan on which the rule fires, one on which it does not.
CASES = {
    "context-is-the-lever": (changed(context=65536), changed(context=65536, purpose="claude-code")),
    "stay-on-moe": (changed(model="qwen3-32b"), SPARK),
    "no-mmap": (LLAMA, changed(LLAMA, "flag:--no-mmap")),
    "enable-swap": (changed(SPARK, "no-swap"), SPARK),
    "one-engine-one-quant": (changed(SPARK, "several-copies"), SPARK),
    "active-parameters": (SPARK, changed(compute_capability="cpu")),
    "few-drafts-on-slow-memory": (changed(**EAGLE), changed(**EAGLE | {"draft_tokens": 1})),
    "drafts-pay-under-latency": (H100, changed(H100, **EAGLE)),
    "long-drafts-need-acceptance": (changed(B200, **EAGLE | {"draft_tokens": 7}), changed(B200, **EAGLE)),
    "long-context-head": (
        changed(**EAGLE | {"head": "nvidia-short-context"}),
        changed(**EAGLE | {"head": "nvidia-short-context", "context": 4096}),
    ),
    "first-token-of-long-prompts": (changed(context=65536), SPARK),
    "claude-code-context": (
        changed(purpose="claude-code", context=65536),
        changed(purpose="claude-code", context=131072),
    ),
    "claude-code-prefix-cache": (changed(purpose="claude-code"), SPARK),
    "claude-code-settings": (changed(EYAS, purpose="claude-code"), changed(purpose="claude-code")),
    "claude-code-longest-output": (changed(VLLM, purpose="claude-code"), changed(VLLM)),
    "block-reuse-off": (changed(TRT, NO_REUSE, purpose="claude-code"), changed(TRT, NO_REUSE)),
    "prefill-budget-bounds-prompts": (changed(TRT, "yaml:enable_chunked_prefill=false"), TRT),
    "no-eager": (changed(VLLM, "flag:--enforce-eager"), VLLM),
    "prefix-cache-off": (
        changed(VLLM, "flag:--no-enable-prefix-caching"),
        changed(VLLM, "flag:--no-enable-prefix-caching", purpose="batch"),
    ),
    "sliding-window-pool": (changed(context=131072), changed(context=131072, version="0.5.9")),
    "sglang-takes-all": (replace(SPARK, features=frozenset()), SPARK),
    "drop-caches": (SPARK, changed(model="gpt-oss-20b")),
    "firmware": (changed(SPARK, "old-firmware"), SPARK),
    "one-slot": (changed(LLAMA, **EAGLE, concurrency=4), changed(LLAMA, **EAGLE)),
    "ollama-context": (OLLAMA, changed(OLLAMA, "env:OLLAMA_CONTEXT_LENGTH")),
    "ollama-throughput": (OLLAMA, SPARK),
    "open-without-key": (changed(SPARK, "listen-all"), changed(SPARK, "listen-all", "api-key")),
}


def test_every_rule_has_a_case():
    assert [rule.name for rule in rules()] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_fires_where_it_should_and_is_silent_elsewhere(name):
    fires, silent = ({note.issue for note in advice(facts)} for facts in CASES[name])
    assert name in fires and name not in silent


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_each_way_in_which_a_rule_can_fire_is_worth_its_sentence(rule):
    assert rule.when and rule.text and rule.sources
    assert "\n" not in rule.text


def test_a_plan_on_a_data_centre_gpu_gets_no_advice_for_a_spark():
    spark_only = {"no-mmap", "enable-swap", "context-is-the-lever", "drop-caches", "stay-on-moe", "sglang-takes-all"}
    assert not spark_only & {note.issue for note in advice(replace(H100, context=131072, features=frozenset()))}
