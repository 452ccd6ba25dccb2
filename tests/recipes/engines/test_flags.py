"""Options that a version lacks are refused; everything that the emitters make for any choice is accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recipes.engines.choices import BOXES, HEADS, PURPOSES, case, grid, words

from eyas.recipes.engines import flags
from eyas.recipes.plan import Home

ENGINES = ("sglang", "vllm")
SPARK_GUIDE = (
    *("--model-path", "openai/gpt-oss-120b", "--speculative-algorithm", "EAGLE3", "--quantization", "mxfp4"),
    *("--max-model-len", "8192", "--host", "0.0.0.0", "--port", "30000"),
)


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_are_whole_and_sorted(engine):
    versions = flags.known_versions(engine)
    assert len(versions) >= 6
    for version in versions:
        text = (flags.TABLES / engine / f"{version}.txt").read_text("ascii").splitlines()
        assert text[0].startswith(f"# Options of the published package {engine} {version}, ")
        assert text[1:] == sorted(set(text[1:]))
        assert {"--help", "--host", "--port"} <= set(text[1:])
        assert all(line.startswith("-") and " " not in line for line in text[1:])


def test_versions_are_in_order_of_release():
    assert flags.known_versions("sglang")[:2] == ("0.5.3.post3", "0.5.6")
    assert flags.known_versions("sglang")[3:5] == ("0.5.9", "0.5.10")
    assert flags.known_versions("nobody") == ()


def test_a_version_without_a_table_is_held_to_the_nearest_below():
    assert flags.options("sglang", "0.5.8") == flags.options("sglang", "0.5.7")
    assert flags.options("sglang", "0.5.24") == flags.options("sglang", "0.5.23")
    assert flags.options("vllm", "0.33.1rc2") == flags.options("vllm", "0.33.0")
    with pytest.raises(ValueError, match=r"no table of the options of sglang 0\.4\.0"):
        flags.check("sglang", "0.4.0", [])


@pytest.mark.parametrize("version", flags.known_versions("sglang"))
def test_the_spark_guides_command_cannot_be_emitted(version):
    with pytest.raises(ValueError, match="has no option --max-model-len"):
        flags.check("sglang", version, SPARK_GUIDE)


def test_options_are_told_from_values():
    flags.check("vllm", "0.33.0", ["serve", "--port", "-1", "--max-model-len=-1", Home("--none"), "-", "{'-x': 1}"])
    with pytest.raises(ValueError, match=r"has no option --max-model$"):
        flags.check("vllm", "0.33.0", ["--max-model=5"])  # argparse would take the prefix of an option
    with pytest.raises(ValueError, match="has no option -Z"):
        flags.check("vllm", "0.33.0", ["-Z"])


def test_renamed_options_are_known_by_version():
    assert "--cuda-graph-max-bs" in flags.options("sglang", "0.5.10")
    assert "--cuda-graph-max-bs" not in flags.options("sglang", "0.5.23")
    assert "--speculative-draft-model-quantization" not in flags.options("sglang", "0.5.6")
    assert "--moe-backend" not in flags.options("vllm", "0.14.1")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_command_of_the_grid_holds_known_options_only(engine):
    for version in flags.known_versions(engine):
        for one in grid(engine, version):
            for launch in one.servers():
                command = words(launch)
                if "serve" in command or "sglang.launch_server" in command:
                    flags.check(engine, version, [word for word in command if word != "-m"])


@given(
    engine=st.sampled_from(ENGINES),
    box=st.sampled_from(BOXES),
    head=st.sampled_from(HEADS),
    purpose=st.sampled_from(PURPOSES),
    draft_tokens=st.integers(1, 8),
    context=st.integers(1, 1 << 20),
    concurrency=st.integers(1, 4096),
    fraction=st.none() | st.floats(0.01, 0.99),
    data=st.data(),
)
def test_any_choice_makes_known_options_with_plain_values(
    engine, box, head, purpose, draft_tokens, context, concurrency, fraction, data
):
    version = data.draw(st.sampled_from(flags.known_versions(engine)))
    made = case(
        engine,
        box,
        head,
        version=version,
        purpose=purpose,
        draft_tokens=draft_tokens if head else 0,
        context=context,
        concurrency=concurrency,
        memory_fraction=fraction,
    )
    for launch in made.servers():
        command = words(launch)
        if "serve" in command or "sglang.launch_server" in command:
            flags.check(engine, version, [word for word in command if word != "-m"])
            assert not any("e+" in word or "None" in word or "True" in word for word in command)
