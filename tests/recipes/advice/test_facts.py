"""Facts of a plan and predicates over them: properties against small oracles, and the tags read from an emission."""

from __future__ import annotations

import operator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from eyas.recipes.advice.facts import Facts, When, facts_of, matches, settings
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.plan import (
    Choice,
    Container,
    Download,
    Emission,
    EnvVar,
    File,
    Home,
    Launch,
    Mount,
    Node,
    Readiness,
    Ref,
)

OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
SPARK = Facts(
    engine="sglang",
    version="0.5.23",
    model="gpt-oss-120b",
    hardware="spark",
    compute_capability="12.1",
    unified=True,
    bandwidth=273e9,
    memory_bytes=128_000_000_000,
    method="eagle3",
    head="lmsys-120b",
    draft_tokens=1,
    context=40960,
    concurrency=4,
    driver="580.159.03",
    features=frozenset({"tools", "flag:--port", "flag:--port=30000", "env:A=b*c"}),
)
TEXTS = st.text(alphabet="ab-*.", max_size=6)


@cache
def wild(pattern: str, text: str) -> bool:
    """`*` stands for any text: by the definition, one character at a time."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return wild(pattern[1:], text) or (bool(text) and wild(pattern, text[1:]))
    return bool(text) and pattern[0] == text[0] and wild(pattern[1:], text[1:])


@given(pattern=TEXTS, text=TEXTS)
def test_a_wildcard_means_any_text(pattern, text):
    holds = matches(When(model=pattern), replace(SPARK, model=text))
    assert holds == (text != "" and wild(pattern, text))
    assert matches(When(all=(pattern,)), replace(SPARK, features=frozenset({text}))) == wild(pattern, text)


@given(patterns=st.lists(TEXTS, max_size=3), text=TEXTS)
def test_a_list_of_texts_is_any_of_them(patterns, text):
    facts = replace(SPARK, hardware=text)
    assert matches(When(hardware=tuple(patterns)), facts) == any(matches(When(hardware=one), facts) for one in patterns)


@given(
    parts=st.lists(st.tuples(st.sampled_from(sorted(OPERATORS)), st.integers(-3, 12)), min_size=1, max_size=3),
    value=st.integers(0, 10),
)
def test_a_comparison_means_what_it_says(parts, value):
    spec = ",".join(f"{sign}{number}" for sign, number in parts)
    expected = all(OPERATORS[sign](value, number) for sign, number in parts)
    assert matches(When(draft_tokens=spec), replace(SPARK, draft_tokens=value)) == expected


@given(number=st.integers(0, 10), value=st.integers(0, 10))
def test_a_bare_number_means_equal(number, value):
    assert matches(When(nodes=str(number)), replace(SPARK, nodes=value)) == (number == value)


@given(features=st.frozensets(TEXTS, max_size=4), pattern=TEXTS)
def test_a_feature_is_there_or_it_is_not(features, pattern):
    facts = replace(SPARK, features=features)
    assert matches(When(all=(pattern,)), facts) != matches(When(none=(pattern,)), facts)


KEYS = {
    "engine": ("sglang", "vllm"),
    "version": (">=0.5.10,<0.6", "<0.5.10"),
    "model": ("GPT-OSS-*", "qwen*"),
    "hardware": (("h100", "spark"), "h100"),
    "compute_capability": ("12.*", "10.*"),
    "unified": (True, False),
    "bandwidth": ("<=273", ">273"),
    "memory": (">=128", ">128"),
    "nodes": ("1", ">1"),
    "tensor_parallel": ("1", "2"),
    "method": (("eagle3", "draft-model"), "none"),
    "head": ("lmsys-*", "nvidia-*"),
    "draft_tokens": ("<=1", ">=2"),
    "context": (">32768", ">=65536"),
    "concurrency": (">=4", ">4"),
    "purpose": ("chat", "batch"),
    "driver": (">=580,<595", ">=595"),
    "all": (("tools", "flag:--port=*"), ("tools", "tree")),
    "none": (("tree",), ("flag:--po*",)),
}


def test_every_key_of_a_predicate_is_in_the_table_above():
    assert set(asdict(When())) == set(KEYS)


@given(chosen=st.dictionaries(st.sampled_from(sorted(KEYS)), st.booleans()))
def test_a_predicate_holds_where_all_of_its_keys_do(chosen):
    when = When(**{key: KEYS[key][0 if holds else 1] for key, holds in chosen.items()})
    assert matches(when, SPARK) == all(chosen.values())


@pytest.mark.parametrize("key", ["engine", "model", "head", "driver", "version", "compute_capability"])
def test_what_is_not_known_matches_nothing_that_asks_for_it(key):
    asked = "*" if key not in ("driver", "version") else ">=0"
    assert not matches(When(**{key: asked}), replace(SPARK, **{key: ""}))


@pytest.mark.parametrize("spec", ["", "about 3", ">", "1..2", ">1 or <3", ">=2;<8"])
def test_what_is_no_comparison_is_refused(spec):
    with pytest.raises(ValueError, match="not a comparison"):
        matches(When(context=spec), SPARK)


CHOICE = Choice(
    model="gpt-oss-120b",
    engine="tensorrt-llm",
    version="1.3.0rc13",
    image="release:1.3.0rc13",
    method="eagle3",
    head="nvidia-long-context",
    draft_tokens=3,
    context=40960,
    concurrency=4,
    nodes=(Node(name="a"), Node(name="b")),
    listen="0.0.0.0",
    port=8000,
    kv_dtype="fp8",
    cache=Home(path="hf"),
    directory=Home(path="d"),
    name="d",
)
EMISSION = Emission(
    launches=(
        Launch(name="fetch", argv=("sh", "-c", "--once"), is_once=True),
        Launch(
            name="server",
            argv=(
                "serve",
                "--a",
                "1",
                "--b=2",
                "--on",
                "-md",
                Home(path="head"),
                "--key",
                Ref(name="KEY"),
                "--last",
            ),
            env=(EnvVar(name="X", value="1"), EnvVar(name="TOKEN", value=Ref(name="TOKEN"))),
            container=Container(name="c", image="release:1.3.0rc13", mounts=(Mount(source="/m", target="/t"),)),
        ),
    ),
    files=(
        File(path="x.yaml", content="spec:\n  tree: true\n  schedule: {1: 3, 32: 0}\n  layers: [1, 2]\n"),
        File(path="x.txt", content="a: b"),
    ),
    downloads=(Download(repo="o/r", num_bytes=1, gated=True),),
    readiness=Readiness(path="/health", timeout_s=1, model="m"),
    features=("short-head",),
)


def test_the_facts_of_a_plan_are_those_of_its_choice_its_box_and_its_commands():
    facts = facts_of(CHOICE, parse_box("2xspark"), EMISSION, extra=("offline",))
    assert (facts.engine, facts.version, facts.head, facts.draft_tokens) == (
        "tensorrt-llm",
        "1.3.0rc13",
        "nvidia-long-context",
        3,
    )
    assert (facts.hardware, facts.compute_capability, facts.unified, facts.nodes) == ("spark", "12.1", True, 2)
    assert (facts.bandwidth, facts.context, facts.concurrency) == (273e9, 40960, 4)
    expected = {"offline", "short-head", "tools", "kv:fp8", "listen-all"}
    expected |= {"image:release:1.3.0rc13", "env:X", "env:X=1", "env:TOKEN", "env:TOKEN=$TOKEN"}
    expected |= {"flag:--a", "flag:--a=1", "flag:--b", "flag:--b=2", "flag:--on", "flag:-md", "flag:-md=~/head"}
    expected |= {"flag:--key", "flag:--key=$KEY", "flag:--last"}
    expected |= {"yaml:spec", "yaml:spec.tree", "yaml:spec.tree=true", "yaml:spec.schedule", "yaml:spec.schedule.1"}
    expected |= {"yaml:spec.schedule.1=3", "yaml:spec.schedule.32", "yaml:spec.schedule.32=0"}
    expected |= {"yaml:spec.layers", "yaml:spec.layers=[1, 2]"}
    assert facts.features == expected


def test_only_yaml_files_have_settings():
    assert settings(EMISSION.files[0]) == {
        "spec.tree": "true",
        "spec.schedule.1": "3",
        "spec.schedule.32": "0",
        "spec.layers": "[1, 2]",
    }
    assert settings(EMISSION.files[1]) == {}
    assert settings(File(path="empty.yml", content="")) == {}
