"""Checks the kernels of training on a GPU against fp64, times attention by way, and steps at the shapes of gpt-oss.

    python -m tools.training_bench.kernels check | step | attention | tune [--lines FILE]

check       attention of a pass by our kernels, flash attention and cuDNN: errors, and whether bits come again
step        gradients of whole steps in bf16, beside those of autograd in bf16
attention   TFLOP/s of the last 8,192 rows of long documents
tune        other sizes of our kernels' launches

Data is random (SIMULATED). Errors are relative, by norm; beside them stands that of plain operations in fp32 on the
same bf16 inputs. A way that fails says so and the next one follows; each result is added to FILE as a line of JSON.
`--small` is for a CPU, in Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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
from eyas.train.types import Batch, States, Teacher

WAYS = ("kernels", "flash", "cudnn")
CHECKED, LONG, ROWS = 6000, (40_960, 131_072), 8192  # tokens; rows of a timed pass
# Tokens, supervised share, rows of a pass, documents: by our kernels alone, with 2,048 keys by a library, packed.
STEPS = ((2048, 1.0, 2048, 1), (3200, 0.3, 2048, 1), (2048, 0.5, 1024, 3))
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
    """Return the starts of documents and the rows of passes; at true sizes three begin in a library."""
    every = torch.arange(tokens)
    runs = torch.arange(0, tokens - 3, 12)[:500, None] + torch.arange(3)
    far = torch.arange(tokens // 2, tokens - 3, 6)[:500, None] + torch.arange(3)
    third = tokens // 3
    return {
        "the last 2,048 rows": ((0, tokens), every[-min(2048, tokens // 2) :]),
        "500 runs of 3 rows": ((0, tokens), runs.flatten()),
        "500 runs in the second half": ((0, tokens), far.flatten()),
        "one row": ((0, tokens), every[-2:-1]),
        "packed": ((0, 3, 2 * third, 2 * third + 1, tokens), every[third + third // 20 : -7]),
    }


def check() -> None:
    for name, (starts, rows) in cases(TOKENS).items():
        case = Case(starts, rows, num_own=6, shape=SHAPE)
        exact, plain = case.run("plain", torch.float64), case.run("plain")
        for way in USED:
            record("check", {"case": name, "way": way}, compared, case, way, exact, plain)


def compared(case: Case, way: str, exact: dict[str, Tensor], plain: dict[str, Tensor]) -> dict[str, Any]:
    """Return the errors of a way, as multiples of plain's too, and whether a second run gives the same bits."""
    first = case.run(way)
    errors = {part: error(x, exact[part]) for part, x in first.items()}
    ratios = {part: errors[part] / max(error(plain[part], exact[part]), 1e-9) for part in errors}
    same = all(torch.equal(x, first[part]) for part, x in case.run(way).items())
    worst = max(errors, key=lambda part: ratios[part])
    return {"worst": errors[worst], "of": worst, "over_plain": ratios[worst], "same_bits": same, "errors": errors}


def step() -> None:
    """Gradients of steps in bf16, ours and autograd's, against fp64 (plain attention, as the reference)."""
    shape, sizes = ("demo", ((96, 1.0, 96, 1), (96, 0.5, 48, 3))) if SMALL else ("gpt-oss-120b", STEPS)
    for tokens, share, chunk, documents in sizes:
        bench, _ = open_bench(shape=shape, file=None, device=DEVICE.type, chunk=chunk)
        what = {"tokens": tokens, "supervised": share, "documents": documents}
        record("step", what, gradients, bench, packed(bench.batch(tokens, share, runs=documents), documents))


def packed(batch: Batch, num: int) -> Batch:
    """Return the batch cut into documents of 1, 2, 3, ... shares of its tokens."""
    starts = tuple(batch.num_tokens * n * (n + 1) // (num * (num + 1)) for n in range(num + 1))
    at_T = torch.arange(batch.num_tokens, device=batch.ids_T.device)
    documents_T = torch.searchsorted(torch.tensor(starts, device=at_T.device), at_T, right=True) - 1
    first_T = torch.tensor(starts, device=at_T.device)[documents_T]
    return replace(
        batch, documents_T=documents_T, positions_T=at_T - first_T, starts=starts, sources=batch.sources * num
    )


def gradients(bench: Any, batch: Batch) -> dict[str, Any]:
    """Return the errors of each gradient of a step, and their ratio."""
    source = bench.source(batch.num_tokens)
    found: dict[str, dict[str, Tensor]] = {}
    for name in ("ours", "autograd", "fp64"):
        mode = None  # the last one's memory
        mode = exact_mode(bench, batch, source) if name == "fp64" else MODES[name](bench, batch, source)
        mode.optimizers.step = lambda _: (0.0, 0.0)
        mode.step()
        found[name] = {key: p.grad for key, p in mode.head.named_parameters() if p.grad is not None}
    errors = {}
    for key, exact in found["fp64"].items():
        ours, theirs = (error(found[name][key], exact) for name in ("ours", "autograd"))
        errors[key] = {"ours": ours, "autograd": theirs, "ratio": ours / theirs}
    return errors


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


def time_attention() -> None:
    for tokens in (200,) if SMALL else LONG:
        for way in USED:
            rows = 64 if SMALL else ROWS
            record("attention", {"tokens": tokens, "way": way}, timed, way, tokens, rows)


def tune() -> None:
    """Forward and backward TFLOP/s of our kernels alone, one launch changed at a time."""
    for name, choices in SETTINGS.items():
        launch = getattr(attention, name)
        kept = dict(launch)
        for change in [{}, *choices]:
            launch.clear()
            launch.update({key: value for key, value in (kept | change).items() if value is not None})
            tokens, rows = (200, 64) if SMALL else (LONG[0], ROWS)
            record("tune", {"launch": name, "change": change}, timed, "kernels", tokens, rows)
        launch.clear()
        launch.update(kept)


def record(part: str, what: dict[str, Any], measure: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    """Measure, print and add a line of JSON to the file of results; a failure is a result too."""
    try:
        found = measure(*arguments)
    except Exception as problem:
        traceback.print_exc()
        found = {"failed": f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"}
    line = json.dumps({"part": part, "simulated": True, **what, **found})
    print(line, flush=True)
    if LINES is not None:
        with LINES.open("a") as file:
            file.write(line + "\n")


PARTS: dict[str, Callable[[], None]] = {"check": check, "step": step, "attention": time_attention, "tune": tune}
MODES: dict[str, Any] = {"ours": Ours, "autograd": Plain}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("part", choices=tuple(PARTS))
parser.add_argument("--lines", type=Path, metavar="FILE", help="file to which results are added")
parser.add_argument("--small", action="store_true", help="small sizes, on a CPU")


if __name__ == "__main__":
    args = parser.parse_args()
    SMALL, LINES = args.small, args.lines
    if SMALL:
        import tests.kernels.support.interpreter  # noqa: F401, mends it
    DEVICE, DTYPE = (torch.device("cpu"), torch.float32) if SMALL else (torch.device("cuda"), torch.bfloat16)
    TOKENS, SHAPE = (120, (2, 8, 16)) if SMALL else (CHECKED, (8, 8, 64))
    USED = WAYS[:1] if SMALL else WAYS
    lines, _ = provenance(hardware(DEVICE))
    print("\n".join(["SIMULATED: data is random", *lines]), flush=True)
    PARTS[args.part]()
