"""Measures the engine with gpt-oss shapes on an H200, in flows that end within minutes (default: 9 each).

    python -m tools.serving_bench decode | prompts | loop | auto | tests [--out DIR] [--minutes 9] [--parts NAME,NAME]

decode   conversations without drafts and with three, 120b and 20b, keys and values in 8 bits at 32,640 tokens
prompts  first tokens to 131,000 tokens, prompts that come at once, launches of full attention
loop     1,024 tokens in, 256 out, by clients
auto     `--draft-tokens auto` in that loop against fixed numbers, by clients and acceptance
tests    GPU tests of whole passes, answers and start-up; all there are: `make test-gpu`

Parts are run as `tools/training_bench/flow.py` says; tables and JSON stand in DIR/log.txt. Weights are random, and
drafts are accepted at a set rate (SIMULATED). The first part of a flow compiles, which takes 60 s more on a machine
without a cache.
"""

from __future__ import annotations

import argparse

from tools.training_bench.flow import Part, add_options, run_flow

ENGINE, MIXED = ("-m", "eyas", "bench", "engine"), ("-m", "eyas", "bench", "mixed")
EACH = ("--answers", "1", "--temperature", "1")
DRAFTS = ("--draft", "eagle3", "--drafts", "3", "--simulate-acceptance", "2.6")
NONE = ("--draft", "none")
LOOP = ("--prompt-tokens", "1024", "--max-tokens", "256")
CLIENTS = ((4, "4", "2"), (16, "2", "2"), (64, "1", "1"))  # answers of each, repeats
GPU_TESTS = {
    "answers": ("tests/engine/test_gpu_exact.py", "tests/engine/test_gpu_screened.py"),
    "answers of many": ("tests/engine/test_gpu_many.py", "tests/engine/startup/test_gpu_steady.py"),
    "passes": (
        "tests/model/networks/test_gpu_rows.py", "tests/model/networks/test_gpu_prompt_rows.py",
        "tests/model/networks/test_gpu_logits.py",
    ),
}  # fmt: skip


def engine(name: str, seconds: int, *arguments: str, shape: str = "gpt-oss-120b") -> Part:
    return Part(name, (*ENGINE, "--shape", shape, *EACH, *arguments), seconds)


def mixed(name: str, seconds: int, *arguments: str) -> Part:
    return Part(name, (*MIXED, "--shape", "gpt-oss-120b", *LOOP, *arguments), seconds)


def long_context(kv_dtype: str) -> Part:
    return engine(
        f"32640 tokens in {kv_dtype}", 70, *NONE, "--batch", "1", "--prompt-tokens", "128,32640", "--max-tokens", "512",
        "--repeats", "3", "--kv-dtype", kv_dtype,
    )  # fmt: skip


def conversations(name: str, seconds: int, batch: str, *arguments: str, shape: str = "gpt-oss-120b") -> Part:
    return engine(name, seconds, "--batch", batch, "--prompt-tokens", "128", *arguments, shape=shape)


DECODE = (
    conversations("drafts", 220, "1,8,32,64", *DRAFTS, "--max-tokens", "256", "--repeats", "3"),
    conversations("many", 80, "128,256", *NONE, "--max-tokens", "128", "--repeats", "2"),
    conversations("20b", 110, "1,8,32,64,128", *DRAFTS, "--max-tokens", "128", "--repeats", "2", shape="gpt-oss-20b"),
    long_context("auto"),
    long_context("fp8"),
)
PROMPTS = (
    engine(
        "first tokens", 200, *NONE, "--batch", "1", "--context", "131072", "--max-tokens", "8", "--repeats", "3",
        "--prompt-tokens", "128,1024,8192,32640,131000",
    ),
    Part("full attention", ("-m", "tools.prompt_launches", "--full", "8192", "1024", "256"), 60),
    mixed("bursts", 90, *NONE, "--clients", "1", "--bursts", "8,32,64,128,256", "--rounds", "1", "--repeats", "2"),
    engine(
        "20b", 90, *NONE, "--batch", "1", "--max-tokens", "8", "--repeats", "2", "--prompt-tokens",
        "128,1024,8192,32640", shape="gpt-oss-20b",
    ),
)  # fmt: skip
LOOPS = tuple(
    mixed(f"{clients} clients", 120, *NONE, "--clients", str(clients), "--rounds", "2", "--repeats", "1")
    for clients in (64, 128, 256)
)
AUTO = tuple(
    mixed(
        f"{clients} clients at {rate}", 240, "--draft", "eagle3", "--drafts", "0,1,2,3,5,auto", "--simulate-acceptance",
        rate, "--clients", str(clients), "--rounds", rounds, "--repeats", repeats,
    )
    for clients, rounds, repeats in CLIENTS for rate in ("0.8", "0.6", "0.3")
)  # fmt: skip
TESTS = tuple(
    Part(name, ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *paths), 240)
    for name, paths in GPU_TESTS.items()
)
FLOWS = {"decode": DECODE, "prompts": PROMPTS, "loop": LOOPS, "auto": AUTO, "tests": TESTS}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
add_options(parser, FLOWS, "runs/serving-bench")


def main() -> None:
    args = parser.parse_args()
    run_flow(parser, args, FLOWS[args.flow])


if __name__ == "__main__":
    main()
