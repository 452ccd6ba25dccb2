"""Measures training of a head of gpt-oss-120b on a GPU, in flows that end within minutes (default: 9 each).

    python -m tools.training_bench first | second | third | curve [--out DIR] [--minutes 9] [--parts NAME,NAME]

first   the kernels against fp64, attention by library, steps of 4,096 to 131,072 tokens
second  against other ways of training, supervised shares, runs, the target in every step, the longest document;
        with the target it needs an H200
third   12 steps with the target at 131,072 tokens, plans with the target (an H200), gradients,
        sizes of tiles, gpt-oss-20b (80 GB)
curve   4K to 128K in four modes, for `python -m tools.training_bench.curve`

Each part is a process with a limit of its own; one that fails, or is stopped, stops no other. What was measured stands
in DIR/results.jsonl, a line each as soon as it is known, and what was printed in DIR/log.txt: a flow that is killed
loses nothing but the part in progress. Parts come in order of their worth. Data is random (SIMULATED). `--small` is for
a CPU, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LEAST = 15  # seconds that a part is begun with
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


@dataclass(frozen=True, slots=True)
class Part:
    """`seconds` is what it may take at most."""

    name: str
    command: tuple[str, ...]
    seconds: int


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
        "with target", 200, "--tokens", "40960,131072", "--supervised", "1", "--mode", "ours", "--with-target",
        "--repeats", "2",
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


def run_part(part: Part, command: tuple[str, ...], folder: Path, limit: float) -> dict[str, object]:
    """Run a part in a process group of its own, and return how it ended. Its lines are added to results.jsonl."""
    lines = folder / "results.jsonl"
    if command[:2] != TESTS[:2]:
        command = (*command, "--lines", str(lines))
    began = time.monotonic()
    with (folder / "log.txt").open("ab") as log:
        log.write(f"== {part.name}: {' '.join(command)}\n".encode())
        log.flush()
        running = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, start_new_session=True)
        try:
            ended = str(running.wait(limit))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            ended = "stopped at its limit"
    return {"part": part.name, "ended": ended, "seconds": round(time.monotonic() - began, 1)}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("flow", choices=tuple(FLOWS))
parser.add_argument("--out", type=Path, default=Path("runs/training-bench"), metavar="DIR", help="folder of results")
parser.add_argument("--minutes", type=float, default=9.0, metavar="N", help="in which the flow ends (default: 9)")
parser.add_argument("--parts", metavar="LIST", help="names of parts, separated by commas (default: all)")
parser.add_argument("--small", action="store_true", help="small sizes, on a CPU")


def main() -> None:
    args = parser.parse_args()
    parts, deadline = FLOWS[args.flow], time.monotonic() + 60 * args.minutes
    if args.parts:
        names = args.parts.split(",")
        if unknown := set(names) - {part.name for part in parts}:
            parser.error(f"no part {', '.join(sorted(unknown))}; parts are {', '.join(part.name for part in parts)}")
        parts = tuple(part for part in parts if part.name in names)
    args.out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        left = deadline - time.monotonic()
        if left < LEAST:
            ended: dict[str, object] = {"part": part.name, "ended": "not begun: the time is up"}
        else:
            ended = run_part(part, in_small(part) if args.small else part.command, args.out, min(part.seconds, left))
        with (args.out / "results.jsonl").open("a") as lines:
            lines.write(json.dumps(ended) + "\n")
        print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
