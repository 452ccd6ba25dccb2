"""Each tip is given where its condition is seen, shows what was seen, and is silent where that is not so."""

import pytest
from msgspec.structs import replace
from tests.fleet.support.stand_ins import GB10_ROW, H200_ROWS

from eyas.fleet.advice.copies import Copy
from eyas.fleet.advice.looking import facts_of
from eyas.fleet.advice.tips import TIPS, Prompts, Reuse, Seen, advice, unseen
from eyas.fleet.machines.machine import Docker, Machine, read_gpus
from eyas.recipes.advice.tuning import rules

GIB = 1 << 30


def machine(*rows, **fields):
    gpus, problems = read_gpus("\n".join([*rows, "exit 0"]))
    defaults = {
        "user": "ann", "architecture": "aarch64", "gpus": gpus, "problems": problems, "memory_bytes": 119 * GIB,
        "available_bytes": 100 * GIB, "free_bytes": 99 * GIB, "swap_bytes": 16 * GIB, "swap_free_bytes": 16 * GIB,
        "disk_path": "/", "disk_free_bytes": 2000 * GIB, "docker": Docker(state="missing"),
    }  # fmt: skip
    return Machine(**(defaults | fields))


def seen(box, *, engine="llama.cpp", model="gpt-oss-120b", context=16384, argv=("llama-server", "--no-mmap"), **more):
    facts = facts_of(box, engine, model, context, argv)
    return Seen(machine=box, facts=facts, context=context, argv=argv, copies=(), **more)


SPARK = machine(GB10_ROW)
H200 = machine(H200_ROWS[0], architecture="x86_64")
WELL = seen(SPARK)
MANY = Prompts(count=500, longest=5000)
COPIES = tuple(
    Copy(name=name, family="gpt-oss-120b", num_bytes=65 * 10**9) for name in ("openai/gpt-oss-120b", "gpt-oss:120b")
)
# Name: what fires it, words of the evidence, and states that are near it and do not.
CASES = {
    "context-is-the-lever": (
        seen(SPARK, context=131072, prompts=MANY),
        "a context of 131,072 tokens; the longest of 500 prompts had at most 5,000",
        [
            seen(SPARK, context=16384, prompts=MANY),
            seen(SPARK, context=131072),
            seen(SPARK, context=131072, prompts=Prompts(count=3, longest=5000)),
            seen(SPARK, context=131072, prompts=Prompts(count=500, longest=60000)),
            seen(H200, context=131072, prompts=MANY),
        ],
    ),
    "stay-on-moe": (
        seen(SPARK, model="qwen3-32b"),
        "for each token, at 273 GB/s",
        [seen(H200, model="qwen3-32b"), WELL],
    ),
    "no-mmap": (
        seen(SPARK, argv=("/opt/llama-server", "-m", "x.gguf")),
        "llama-server runs without --no-mmap",
        [seen(SPARK, argv=None), seen(SPARK, engine="vllm", argv=("vllm",)), seen(H200, argv=("llama-server",))],
    ),
    "enable-swap": (
        seen(machine(GB10_ROW, swap_bytes=0)),
        "SwapTotal is 0, with 119.00 GiB for CPU and GPU together",
        [seen(machine(H200_ROWS[0], swap_bytes=0)), seen(machine(GB10_ROW, swap_bytes=0), model="gpt-oss-20b")],
    ),
    "one-engine-one-quant": (
        replace(WELL, copies=COPIES),
        "gpt-oss-120b: openai/gpt-oss-120b, gpt-oss:120b (121.07 GiB)",
        [replace(WELL, copies=COPIES[:1]), replace(WELL, copies=None)],
    ),
    "claude-code-prefix-cache": (
        Seen(reuse=Reuse(same=1700, other_line=0, total=1800)),
        "1,700 of 1,800 tokens of a repeated prompt came from the cache, 0 with another attribution line",
        [
            Seen(reuse=Reuse(same=1700, other_line=1690, total=1800)),
            Seen(reuse=Reuse(same=0, other_line=0, total=1800)),  # no cache at all: another finding
        ],
    ),
    "drop-caches": (
        seen(machine(GB10_ROW, free_bytes=30 * GIB)),
        "70.00 GiB of page cache count as used for the GPU, 30.00 GiB are free",
        [seen(machine(H200_ROWS[0], free_bytes=30 * GIB)), WELL],
    ),
}  # fmt: skip


def test_there_is_a_case_for_each_tip():
    assert list(CASES) == [tip.rule for tip in TIPS]


@pytest.mark.parametrize("name", CASES)
def test_a_tip_is_given_where_its_condition_is_seen(name):
    fires, words, _ = CASES[name]
    (found,) = (one for one in advice(fires) if one.name == name)
    rule = next(rule for rule in rules() if rule.name == name)
    assert words in found.evidence
    assert found.text == rule.text.strip() and found.source == "; ".join(rule.sources)


@pytest.mark.parametrize("name", CASES)
def test_and_nowhere_else(name):
    for near in CASES[name][2]:
        assert name not in [one.name for one in advice(near)]


def test_nothing_to_say():
    assert advice(WELL) == () and unseen(WELL) == ()


def test_what_cannot_be_looked_at_is_said():
    elsewhere = Seen(context=131072, prompts=MANY)
    assert advice(elsewhere) == ()
    assert unseen(elsewhere) == tuple(tip.rule for tip in TIPS if tip.rule != "claude-code-prefix-cache")
