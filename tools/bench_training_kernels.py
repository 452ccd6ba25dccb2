"""Checks the kernels of training on a GPU against fp64, times attention by way, and steps at the shapes of gpt-oss.

    python tools/bench_training_kernels.py [check step attention bench target tune]

check       attention of a pass by our kernels, flash attention and cuDNN: errors, and whether bits come again
step        gradients of a whole step in bf16, beside those of autograd in bf16
attention   TFLOP/s of the last 8,192 rows of long documents
bench       `eyas train bench` at 4,096, 40,960 and 131,072 tokens, with its baselines where they fit
target      the same with a target of random weights, 65 GB, in every step
tune        other sizes of our kernels' launches

About ten minutes on an H200. Data is random (SIMULATED). Errors are relative, by norm; beside them stands that of plain
operations in fp32 on the same bf16 inputs. A part that fails says so and the next one runs; the last line is JSON.
`--small` is for a CPU, in Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eyas.bench.report import provenance
from eyas.bench.training.modes import Ours, Plain
from eyas.bench.training.steps import open_bench
from eyas.kernels.training import attention
from eyas.kernels.training.library import LIBRARIES
from eyas.model.hardware import hardware
from eyas.train.heads.attention import Prefix, attend, row_blocks
from eyas.train.heads.kernel_attention import attend_by_kernels, pass_rows
from eyas.train.types import States, Teacher

SIZES = ("--shape", "gpt-oss-120b", "--chunk", "4096", "--tile", "2048", "--repeats", "3")
BENCHES = (
    ("--tokens", "4096", "--supervised", "1", "--mode", "ours,checkpoints,plain"),
    ("--tokens", "40960", "--supervised", "1,0.3,0.1", "--runs", "20", "--mode", "ours,checkpoints"),
    ("--tokens", "131072", "--supervised", "1", "--mode", "ours"),
)
TARGETS = (("--tokens", "40960,131072", "--supervised", "1", "--mode", "ours", "--with-target"),)
WAYS = ("kernels", "flash", "cudnn")
CHECKED, LONG, ROWS = 6000, (40_960, 131_072), 8192  # tokens; rows of a timed pass
SETTINGS = {  # to try, beside those that are set
    "_FORWARD": [
        dict(BLOCK_M=128, BLOCK_N=128, maxnreg=None),
        dict(BLOCK_M=128, BLOCK_N=64, maxnreg=None),
        dict(BLOCK_M=64, BLOCK_N=64, num_warps=4, maxnreg=None),
    ],
    "_QUERIES": [dict(BLOCK_M=128, BLOCK_N=64, num_warps=8), dict(BLOCK_M=64, BLOCK_N=32, num_warps=4)],
    "_KEYS": [dict(BLOCK_M=64, BLOCK_N=64, num_warps=4), dict(BLOCK_M=32, BLOCK_N=128, num_warps=8)],
}


class Case:
    """A pass: rows of a batch of packed documents, with keys of later depths."""

    def __init__(self, starts: tuple[int, ...], rows: Tensor, *, num_own: int, shape: tuple[int, int, int]) -> None:
        groups, queries, dim = shape
        generator = torch.Generator(DEVICE).manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, device=DEVICE).to(DTYPE)

        self.starts, self.rows, self.places = starts, rows.to(DEVICE), rows.tolist()
        self.keys, self.values = (normal(starts[-1], groups, dim) for _ in range(2))
        self.q, self.d_out = (normal(len(rows), groups, queries, dim) for _ in range(2))
        self.own = [(normal(len(rows), groups, dim), normal(len(rows), groups, dim)) for _ in range(num_own)]

    def run(self, way: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Return output and gradients by name, computed from inputs in `dtype`; by default they are as they were drawn.

        `way` plain computes in fp32 or wider.
        """
        dtype = dtype or DTYPE
        q, keys, values = (x.to(dtype, copy=True) for x in (self.q, self.keys, self.values))
        q = q.requires_grad_()
        own = [tuple(x.to(dtype, copy=True).requires_grad_() for x in pair) for pair in self.own]
        wide = torch.promote_types(dtype, torch.float32)
        sums = [torch.zeros(keys.shape, device=DEVICE, dtype=wide) for _ in "kv"]
        prefix = Prefix(keys, values, *sums)
        if way == "plain":
            starts = torch.tensor(self.starts, device=DEVICE)
            starts_R = starts[torch.searchsorted(starts, self.rows, right=True) - 1]
            out = attend(q, prefix, self.rows, row_blocks(self.places, self.starts), own, starts_R=starts_R)
        else:
            library = LIBRARIES.get(way)
            listed = pass_rows(self.rows, self.places, self.starts, has_library=library is not None)
            out = attend_by_kernels(q, prefix, listed, own, library)
        out.backward(self.d_out.to(dtype))
        grads = {
            f"d own {name} {j + 1}": x.grad for j, pair in enumerate(own) for name, x in zip("kv", pair, strict=True)
        }
        return {"out": out.detach(), "d q": q.grad, "d k": sums[0], "d v": sums[1]} | grads


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm().clamp(min=1e-30))


def cases(tokens: int) -> dict[str, tuple[tuple[int, ...], Tensor]]:
    every = torch.arange(tokens)
    runs = torch.arange(0, tokens - 3, 12)[:500, None] + torch.arange(3)
    third = tokens // 3
    return {
        "the last 2,048 rows": ((0, tokens), every[-min(2048, tokens // 2) :]),
        "500 runs of 3 rows": ((0, tokens), runs.flatten()),
        "one row": ((0, tokens), every[-2:-1]),
        "packed": ((0, 3, third, 2 * third + 1, tokens), every[third // 2 : -7]),
    }


def check() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (starts, rows) in cases(TOKENS).items():
        case = Case(starts, rows, num_own=6, shape=SHAPE)
        exact, plain = case.run("plain", torch.float64), case.run("plain")
        for way in USED:
            errors = {part: error(x, exact[part]) for part, x in case.run(way).items()}
            ratios = {part: errors[part] / max(error(plain[part], exact[part]), 1e-9) for part in errors}
            worst = max(errors, key=lambda part: ratios[part])
            again = [case.run(way).values() for _ in range(2)]
            same = [torch.equal(a, b) for a, b in zip(*again, strict=True)]
            print(f"{name}, {way}: error {max(errors.values()):.1e}, {ratios[worst]:.2f} of plain's ({worst}), "
                  f"{'same bits' if all(same) else 'other bits'} again", flush=True)  # fmt: skip
            found[f"{name}, {way}"] = {"errors": errors, "over_plain": ratios, "same_bits": all(same)}
    return found


def step() -> dict[str, Any]:
    """Loss and gradients of a step in bf16, ours and autograd's, against fp64 (plain attention, as the reference)."""
    tokens, shape = (96, "demo") if SMALL else (2048, "gpt-oss-120b")
    bench, _ = open_bench(shape=shape, file=None, device=DEVICE.type)
    batch, source = bench.batch(tokens, 1.0), bench.source(tokens)
    gradients: dict[str, dict[str, Tensor]] = {}
    for name in ("ours", "autograd", "fp64"):
        mode = (Plain if name == "autograd" else Ours)(bench, batch, source)
        mode.optimizers.step = lambda _: (0.0, 0.0)
        if name == "fp64":
            mode = exact_mode(bench, batch, source)
        mode.step()
        gradients[name] = {key: p.grad for key, p in mode.head.named_parameters() if p.grad is not None}
    found = {}
    for key, exact in gradients["fp64"].items():
        ours, theirs = (error(gradients[name][key], exact) for name in ("ours", "autograd"))
        found[key] = {"ours": ours, "autograd": theirs}
        print(f"{key}: {ours:.2e}, autograd {theirs:.2e}, {ours / theirs:.2f}", flush=True)
    return found


def exact_mode(bench: Any, batch: Any, source: Any) -> Any:
    """Return our step in fp64 on the same weights and states."""
    exact = replace(
        bench, teacher=Teacher(*(x.double() for x in bench.teacher)), train=replace(bench.train, attention="plain"),
        dtype=torch.float64,
    )  # fmt: skip
    states = source.states(batch)
    doubled = exact.source(8)
    doubled._states = States(states.taps_TC.double(), states.last_TH.double())  # of the same values
    mode = Ours(exact, batch, doubled)
    mode.head.double()
    mode.optimizers.step = lambda _: (0.0, 0.0)
    return mode


def seconds(run: Callable[[], Any], repeats: int = 5) -> float:
    run()
    times = []
    for _ in range(repeats):
        wait()
        began = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def timed(way: str, tokens: int, rows: int) -> dict[str, float]:
    """TFLOP/s of the last rows of a document, forward and backward, with three keys of later depths."""
    case = Case((0, tokens), torch.arange(tokens - rows, tokens), num_own=3, shape=SHAPE)
    library = LIBRARIES.get(way)
    listed = pass_rows(case.rows, case.places, case.starts, has_library=library is not None)
    sums = [torch.zeros(case.keys.shape, device=DEVICE) for _ in "kv"]
    prefix = Prefix(case.keys, case.values, *sums)
    q = case.q.requires_grad_()
    pairs = [tuple(x.requires_grad_() for x in pair) for pair in case.own]

    def forward() -> Tensor:
        return attend_by_kernels(q, prefix, listed, pairs, library)

    out = forward()

    def backward() -> None:
        out.backward(case.d_out, retain_graph=True)

    pairs_seen = rows * tokens - rows * (rows - 1) / 2
    heads = SHAPE[0] * SHAPE[1] * SHAPE[2]
    return {
        "forward": 4 * heads * pairs_seen / seconds(forward) / 1e12,
        "backward": 10 * heads * pairs_seen / seconds(backward) / 1e12,
    }


def time_attention() -> dict[str, Any]:
    found = {}
    for tokens in (200,) if SMALL else LONG:
        for way in USED:
            found[f"{tokens}, {way}"] = speed = timed(way, tokens, 64 if SMALL else ROWS)
            print(f"{tokens:,} keys, {way}: {speed['forward']:.0f} and {speed['backward']:.0f} TFLOP/s", flush=True)
    return found


def tune() -> dict[str, Any]:
    """Forward and backward TFLOP/s of our kernels alone, one launch changed at a time."""
    found = {}
    for name, choices in SETTINGS.items():
        launch = getattr(attention, name)
        kept = dict(launch)
        for change in [{}, *choices]:
            launch.clear()
            launch.update(kept | change)
            launch.update({} if launch.get("maxnreg", 0) is not None else {"maxnreg": 255})
            speed = timed("kernels", 200 if SMALL else LONG[0], 64 if SMALL else ROWS)
            found[f"{name} {change}"] = speed
            print(f"{name} {change}: {speed['forward']:.0f} and {speed['backward']:.0f} TFLOP/s", flush=True)
        launch.clear()
        launch.update(kept)
    return found


def benches(commands: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Run `eyas train bench` in processes of their own, whose output is shown; return what each wrote last."""
    found = {}
    for command in commands:
        sizes = ("--shape", "demo", "--repeats", "1", "--tokens", "64") if SMALL else (*SIZES, *command)
        line = [sys.executable, "-m", "eyas", "train", "bench", *sizes]
        print(" ".join(line[1:]), flush=True)
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            last = ""
            for last in running.stdout:
                print(last, end="", flush=True)
        found[" ".join(command)] = json.loads(last) if running.returncode == 0 else {"failed": running.returncode}
    return found


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "check": check,
    "step": step,
    "attention": time_attention,
    "bench": lambda: benches(BENCHES),
    "target": lambda: benches(TARGETS),
    "tune": tune,
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run (default: all)")
parser.add_argument("--small", action="store_true", help="small sizes, on a CPU")


if __name__ == "__main__":
    args = parser.parse_args()
    SMALL = args.small
    DEVICE, DTYPE = (torch.device("cpu"), torch.float32) if SMALL else (torch.device("cuda"), torch.bfloat16)
    TOKENS, SHAPE = (120, (2, 8, 16)) if SMALL else (CHECKED, (8, 8, 64))
    USED = WAYS[:1] if SMALL else WAYS
    lines, origin = provenance(hardware(DEVICE))
    print("\n".join(["SIMULATED: data is random", *lines]), flush=True)
    results: dict[str, Any] = {}
    for part in args.parts or PARTS:
        print(f"== {part}", flush=True)
        try:
            results[part] = PARTS[part]()
        except Exception:
            traceback.print_exc()
            results[part] = {"failed": traceback.format_exc(limit=1)}
        if not SMALL:
            torch.cuda.empty_cache()  # for processes of their own
    print(json.dumps({"bench": "training kernels", "simulated": True, **origin, **results}))
