"""Measures training of a head of gpt-oss-120b on a GPU, in flows that end within minutes (default: 9 each).

    python -m tools.training_bench first | second | third | curve [--out DIR] [--minutes 9] [--parts NAME,NAME]

first   the kernels against fp64, attention by library, steps of 4,096 to 131,072 tokens
second  against other ways of training, supervised shares, runs, the target in every step, the longest document;
        with the target it needs an H200
third   12 steps with the target at 131,072 tokens, plans with the target (an H200), gradients,
        sizes of tiles, gpt-oss-20b (80 GB)
curve   4K to 128K in four modes, for `python -m tools.training_bench.curve`

Parts are run as `flow.py` says; what was measured stands in DIR/results.jsonl, too, as soon as it is known. Data
is random (SIMULATED). `--small` is for a CPU, in Triton's interpreter.
"""

from __future__ import annotations

import argparse

from tools.training_bench.flow import Part, add_options, run_flow

BENCH = ("-m", "eyas", "train", "bench")
SIZES = ("--chunk", "4096", "--tile", "2048")
SMALL_BENCH = ("-m", "eyas", "train", "bench", "--shape", "demo", "--repeats", "1", "--tokens", "64")
KERNELS = ("-m", "tools.training_bench.kernels")
WARNING = "ignore:Attempting to run cuBLAS"  # of torch, in autograd's own thread
TESTS = (
    "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", WARNING, "-m", "not soak", "tests/kernels/training",
    "tests/train/states/test_gpu_target.py", "tests/train/states/test_gpu_host_memory.py",
    "--deselect", "tests/kernels/training/test_offline.py",
)  # fmt: skip


def bench(name: str, seconds: int, *arguments: str, shape: str = "gpt-oss-120b") -> Part:
    """`arguments` may give other sizes and repeats: the last ones count."""
    return Part(name, (*BENCH, "--shape", shape, *SIZES, "--repeats", "3", *arguments), seconds)


def kernels(name: str, seconds: int) -> Part:
    return Part(name, (*KERNELS, name), seconds)


FIRST = (
    kernels("check", 100),
    kernels("attention", 70),
    bench("table", 200, "--tokens", "4096,40960,131072", "--supervised", "1", "--mode", "ours", "--attention", "flash"),
    kernels("step", 60),
    bench("cudnn", 150, "--tokens", "40960,131072", "--supervised", "1", "--mode", "ours", "--attention", "cudnn"),
    Part("tests", TESTS, 120),
    bench("kernels alone", 60, "--tokens", "40960", "--supervised", "1", "--mode", "ours", "--attention", "kernels"),
    kernels("tune", 80),
)
SECOND = (
    bench("4096", 60, "--tokens", "4096", "--supervised", "1", "--mode", "ours,checkpoints,plain,hard"),
    bench("40960", 140, "--tokens", "40960", "--supervised", "1,0.3,0.1", "--runs", "20", "--mode", "ours,checkpoints"),
    bench(
        "with target", 240, "--tokens", "40960,131072", "--supervised", "1", "--mode", "ours", "--with-target",
    ),
    bench("500 runs of 3", 60, "--tokens", "40960", "--supervised", "0.0366", "--runs", "500", "--mode",
          "ours,checkpoints"),
    bench("longest", 150, "--tokens", "4096", "--supervised", "1", "--mode", "ours,checkpoints,hard", "--repeats", "1",
          "--max-length", "262144"),
    Part("speculators", ("-m", "tools.training_bench.speculators_arm"), 120),
    bench("131072 at 10 %", 60, "--tokens", "131072", "--supervised", "0.1", "--runs", "20", "--mode", "ours"),
    bench("196608", 240, "--tokens", "196608", "--supervised", "1", "--mode", "ours", "--repeats", "1"),
)  # fmt: skip
THIRD = (
    bench("12 steps", 330, "--tokens", "131072", "--supervised", "1", "--mode", "ours", "--with-target",
          "--repeats", "8"),  # after two, and before two more
    bench("plans", 120, "--tokens", "4096,65536", "--supervised", "0.3", "--mode", "ours", "--with-target",
          "--repeats", "1"),
    kernels("step", 60),
    *(bench(f"tiles of {tile}", 40, "--tokens", "40960", "--supervised", "1", "--mode", "ours", "--repeats", "1",
            "--tile", str(tile)) for tile in (1024, 4096)),
    bench("20b", 200, "--tokens", "4096,40960,131072", "--supervised", "1", "--mode", "ours", "--with-target",
          "--repeats", "1", shape="gpt-oss-20b"),  # its head has the shape of the 120b's, and is not measured alone
)  # fmt: skip
CURVE = tuple(
    bench(f"curve {tokens}", seconds, "--tokens", str(tokens), "--supervised", "1", "--mode", modes, "--repeats", "1")
    for tokens, seconds, modes in (
        (4096, 60, "ours,checkpoints,hard,plain"),
        (8192, 60, "ours,checkpoints,hard,plain"),
        (16384, 60, "ours,checkpoints,hard"),
        (32768, 90, "ours,checkpoints,hard"),
        (65536, 120, "ours,checkpoints,hard"),
        (131072, 200, "ours"),
    )
)
FLOWS = {"first": FIRST, "second": SECOND, "third": THIRD, "curve": CURVE}


def in_small(part: Part) -> tuple[str, ...]:
    """Return the command of a part with sizes for a CPU."""
    if part.command[: len(BENCH)] == BENCH:
        return SMALL_BENCH
    return part.command if part.command == TESTS else (*part.command, "--small")


def command_of(part: Part, args: argparse.Namespace) -> tuple[str, ...]:
    """Return the command of a part, whose lines go to the results."""
    command = in_small(part) if args.small else part.command
    return command if part.command == TESTS else (*command, "--lines", str(args.out / "results.jsonl"))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
add_options(parser, FLOWS, "runs/training-bench")
parser.add_argument("--small", action="store_true", help="small sizes, on a CPU")


def main() -> None:
    args = parser.parse_args()
    run_flow(parser, args, FLOWS[args.flow], lambda part: command_of(part, args))


if __name__ == "__main__":
    main()
