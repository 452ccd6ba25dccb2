"""What people build on: names of the package, command-line flags, and that a look at them costs no torch."""

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import eyas
from eyas import cli
from eyas.base.types import SamplingParams

FLAGS = Path(__file__).parents[1] / "assets" / "cli_flags.txt"
HEAVY = ("torch", "transformers", "numpy", "safetensors", "triton")
NETWORK = ("aiohttp", "httpx", "msgspec", "discord")


def test_names_of_the_package():
    assert eyas.__all__ == ["LLM", "AsyncClient", "SamplingParams", "__version__"]
    assert eyas.AsyncClient.__module__ == "eyas.client.client"
    assert eyas.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = eyas.nothing


def test_sampling_params_keep_the_names_that_vllm_users_know():
    names = {item.name for item in dataclasses.fields(SamplingParams)}
    assert names == {
        *("temperature", "top_p", "top_k", "min_p", "seed", "n", "stop_token_ids", "min_tokens", "max_tokens"),
        *("ignore_eos", "logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
        *("prompt_logprobs", "allowed_token_ids", "bad_words"),
        "grammar",  # of our own: vLLM has a class for it
    }


def flags_of(name: str) -> list[str]:
    """`eyas NAME` and every argument of its parser and subparsers, one per line."""
    parser = argparse.ArgumentParser(prog=f"eyas {name}", allow_abbrev=False)
    cli.runner_of(cli.COMMANDS[name]).add_arguments(parser)
    lines = []
    waiting = [parser]
    while waiting:
        one = waiting.pop()
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += reversed(action.choices.values())
            elif not isinstance(action, argparse._HelpAction):
                lines.append(f"{one.prog} {' '.join(action.option_strings) or action.dest}")
    return lines


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_flags_are_those_of_the_snapshot(name):
    """After a wanted change: python -m tests.architecture.test_public_api > tests/assets/cli_flags.txt"""
    longer = tuple(f"eyas {other} " for other in cli.COMMANDS if other.startswith(f"{name} "))
    lines = FLAGS.read_text().splitlines()
    snapshot = [line for line in lines if line.startswith(f"eyas {name} ") and not line.startswith(longer)]
    assert flags_of(name) == snapshot


@pytest.mark.parametrize(
    "code",
    [
        "import eyas",
        "from eyas import cli; cli.main(['--help'])",
        "from eyas import SamplingParams",
        "import eyas.gateway.app, eyas.engine.ports.stub, eyas.base.harmony.parser",
        "from eyas import cli\ntry: cli.main(['serve', '--help'])\nexcept SystemExit: pass",
        "from eyas import cli\ntry: cli.main(['generate', '--help'])\nexcept SystemExit: pass",
        "from eyas import cli\ntry: cli.main(['chat', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_no_torch_before_it_is_needed(code):
    check = f"{code}\nimport sys\nloaded = [name for name in {HEAVY} if name in sys.modules]\nassert not loaded, loaded"
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import eyas", NETWORK),
        ("from eyas import cli; cli.main(['--help'])", NETWORK),
        ("import eyas.client.errors, eyas.client.pieces, eyas.client.endpoint.canary", ("aiohttp", "discord")),
        ("from eyas import AsyncClient", ("discord", "openai", "starlette", *HEAVY)),
    ],
)
def test_no_network_library_before_it_is_needed(code, unwanted):
    check = f"{code}\nimport sys\nloaded = [n for n in {unwanted} if n in sys.modules]\nassert not loaded, loaded"
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, timeout=60)


def test_time_of_import_and_help(record_property):
    """Measured, not asserted: the bar is 0.3 s; `pytest --junitxml` and -rP show the numbers."""
    import time

    for label, argv in (("import", ["-c", "import eyas"]), ("help", ["-m", "eyas", "--help"])):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, *argv], check=True, capture_output=True, timeout=60)
            times.append(time.perf_counter() - start)
        record_property(f"{label}_s", round(min(times), 3))
        print(f"eyas {label}: {min(times):.3f} s, best of 3")


if __name__ == "__main__":
    print("\n".join(line for name in cli.COMMANDS for line in flags_of(name)))
