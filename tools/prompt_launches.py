"""Times on a GPU other launches of the Triton kernels of prompt passes, and whether their bits are the same.

    python -m tools.prompt_launches [--compile N] [--full] [rows ...]

Weights and rows are random, in the shapes of gpt-oss-120b (SIMULATED): QKV, the attention's output product with the
residual, attention, attention with a window, and a draft head's first product; `*` is the launch of a pass.
Launches with STEP, the columns of a step, go by TMA (`kernels.triton.prompts.tma`), from 1,024 rows on; their time has
the unpacking of the matrix in it. --compile N compiles the launches of one kernel and times nothing: several processes
with N = 0 to 4 do so side by side.

--full: attention without a window alone, of the last rows of a prompt of 32,640 tokens in tiles, as engines have them,
by Triton and on Hopper by `kernels/cuda/attention/flash.cu`, in turns, over bf16 and 8 bits.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton
from tools.bench_prompt import CONFIG, DEVICE, TURNS, launch_us, timed
from torch import Tensor

from eyas.bench.report import provenance
from eyas.kernels.cuda.attention import flash as cuda_flash
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.layouts.fp8_cache import to_fp8_pair
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.layers.ops import LayerCache, RopeTable, Rows
from eyas.kernels.reference.layers.roles import PROMPT_TILE
from eyas.kernels.triton.prompts import flash, gemm, qkv, tma
from eyas.model.hardware import hardware

ROWS = (128, 1024, 2048, 4096, 8192)
TMA_ROWS = 1024  # the least for which launches by TMA are timed
PAGE_SIZE = 16
MATRICES = 16  # so that each launch finds its matrix outside the L2 cache
FEW = 3  # of a head's, which are larger than that cache
EPS = 1e-5
LENGTH = 32_640  # of the prompt of --full
LAST_ROWS = (128, 256, 1024, 8192, LENGTH)
WARPGROUPS, DEPTHS = (1, 2, 3), (4, 8, 12)


def launches(names: str, *sizes: tuple[int, ...]) -> list[dict[str, int]]:
    return [dict(zip(names.split(), each, strict=True)) for each in sizes]


QKV = launches(
    "BLOCK_T BLOCK_K num_warps num_stages",
    (64, 64, 4, 4), (64, 64, 4, 6), (64, 128, 4, 3), (64, 128, 4, 4), (128, 64, 4, 3), (128, 64, 4, 4), (128, 64, 8, 3),
    (256, 64, 8, 3),
) + launches(
    "BLOCK_T PAIRS STEP GROUP_T num_warps num_stages",
    (128, 2, 64, 8, 8, 3), (128, 2, 64, 8, 8, 4), (128, 2, 64, 4, 8, 4), (128, 2, 64, 16, 8, 4), (128, 1, 64, 8, 8, 4),
    (128, 1, 64, 8, 4, 4), (256, 1, 64, 8, 8, 4),
)  # fmt: skip
OUTPUT = launches(
    "BLOCK_T BLOCK_N BLOCK_K num_warps num_stages",
    (64, 64, 128, 4, 3), (64, 64, 64, 4, 6), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (128, 128, 64, 4, 4),
    (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3),
) + launches(
    "BLOCK_T BLOCK_N STEP GROUP_T num_warps num_stages",
    (128, 256, 64, 8, 8, 3), (128, 256, 64, 8, 8, 4), (128, 256, 64, 4, 8, 4), (128, 256, 64, 16, 8, 4),
    (256, 128, 64, 8, 8, 4), (128, 128, 64, 8, 8, 4), (128, 128, 64, 8, 4, 4),
)  # fmt: skip
WHOLE = launches(  # BLOCK_M: rows times heads
    "BLOCK_M BLOCK_N num_warps num_stages maxnreg", (128, 128, 8, 3, 128), (64, 128, 4, 3, 128), (64, 128, 4, 3, 208),
) + launches(
    "BLOCK_M BLOCK_N num_warps num_stages",
    (64, 128, 4, 2), (64, 128, 4, 3), (64, 128, 4, 4), (64, 64, 4, 3), (64, 64, 4, 4), (128, 64, 8, 3),
)  # fmt: skip
WINDOWED = launches(
    "BLOCK_M BLOCK_N num_warps num_stages",
    (64, 32, 4, 1), (64, 32, 4, 2), (64, 32, 4, 3), (64, 32, 4, 4), (64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 4, 3),
    (128, 32, 4, 2), (128, 32, 8, 2),
)  # fmt: skip


class Kernel(NamedTuple):
    name: str
    launches: list[dict[str, int]]
    usual: dict[str, int]
    place: tuple[ModuleType, str]  # where the kernel finds its launch, as a dict or a function that returns it
    run: Callable[[Any], Sequence[Tensor]]  # returns all that it writes
    inputs: Sequence[Any]  # of one launch each, a graph's


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="*")
    parser.add_argument("--compile", type=int)
    parser.add_argument("--full", action="store_true")
    asked = parser.parse_args()
    lines, _ = provenance(hardware(DEVICE))
    print("\n".join(lines))
    with torch.inference_mode():
        if asked.full:
            for rows in asked.rows or LAST_ROWS:
                show_full(rows)
            return
        matrices = _drawn((CONFIG.num_heads + 2 * CONFIG.num_kv_heads) * CONFIG.head_dim, CONFIG.hidden_size)
        outputs = _drawn(CONFIG.hidden_size, CONFIG.num_heads * CONFIG.head_dim)
        first = _drawn(CONFIG.hidden_size, 3 * CONFIG.hidden_size, FEW)
        for rows in asked.rows or ROWS:
            kernels = [*_kernels(rows, matrices, outputs), _head_kernel(rows, first)]
            for number, kernel in enumerate(kernels):
                if asked.compile in (None, number):
                    show(rows, kernel, timed=asked.compile is None)


def show(rows: int, kernel: Kernel, *, timed: bool) -> None:
    print(f"\n{rows} rows, {kernel.name}, us")
    before = getattr(*kernel.place)
    written = kernel.run(kernel.inputs[0])
    wanted = [tensor.clone() for tensor in written]
    for launch in kernel.launches:
        if "STEP" in launch and rows < TMA_ROWS:
            continue
        label = " ".join(f"{name.removeprefix('BLOCK_').removeprefix('num_')} {n}" for name, n in launch.items())
        setattr(
            *kernel.place, launch if isinstance(before, dict) else lambda *_, launch=launch: {"GROUP_T": 8} | launch
        )
        try:
            for tensor in written:
                tensor.zero_()
            written = kernel.run(kernel.inputs[0])
            if timed:
                mark = "*" if launch.items() <= kernel.usual.items() else " "
                bits = "same bits" if all(map(torch.equal, written, wanted)) else f"OTHER BITS, {off(written, wanted)}"
                print(f"{label:>54} {launch_us(kernel.run, kernel.inputs):8.1f} {mark} {bits}", flush=True)
        except (RuntimeError, triton.runtime.errors.OutOfResources) as problem:
            print(f"{label:>54} {str(problem).splitlines()[0]}")
        finally:
            setattr(*kernel.place, before)


def show_full(num_rows: int) -> None:
    """Print the time of each arm, the median of turns in which all take part."""
    queries, rows, cache, sinks = _attention(num_rows, LENGTH - num_rows)
    rows = _in_tiles(rows)
    pairs = num_rows * (LENGTH - num_rows) + num_rows * (num_rows + 1) // 2
    tera = 4e-12 * pairs * CONFIG.num_heads * CONFIG.head_dim

    def by_cuda(cache: LayerCache, warpgroups: int, depth: int) -> Tensor:
        cuda_flash.warpgroups_of, cuda_flash.DEPTH = lambda *_: warpgroups, depth
        out = cuda_flash.flash_attend(queries, rows, cache, sinks_Q=sinks)
        assert out is not None
        return out

    k, v, scales = to_fp8_pair(cache.k, cache.v)
    in_fp8 = LayerCache(k, v, scales.transpose(2, 3).contiguous())
    arms = {
        name: partial(flash.flash_attend, queries, rows, of_arm, sinks_Q=sinks, window=None)
        for name, of_arm in (("Triton", cache), ("Triton, 8 bits", in_fp8))
    }
    choose, usual_depth = cuda_flash.warpgroups_of, cuda_flash.DEPTH
    group, num_sms = CONFIG.num_heads // CONFIG.num_kv_heads, device_limits(DEVICE).num_sms
    usual = choose(num_rows // PROMPT_TILE, PROMPT_TILE, group, CONFIG.num_kv_heads, num_sms), usual_depth
    for arm in itertools.product(WARPGROUPS, DEPTHS) if cuda_flash.hopper_attention(DEVICE) else ():
        name = "CUDA, {} warpgroups, {} stages{}".format(*arm, " *" * (arm == usual))
        arms[name] = partial(by_cuda, cache, *arm)
        if arm[1] == usual_depth:
            arms[f"{name}, 8 bits"] = partial(by_cuda, in_fp8, *arm)
    print(f"\nlast {num_rows} of {LENGTH} rows, ms")
    outs = {name: run() for name, run in arms.items()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(TURNS):
        for name, run in arms.items():
            times[name].append(timed(run))
    cuda_flash.warpgroups_of, cuda_flash.DEPTH = choose, usual_depth
    for name, found in times.items():
        ms = median(found) / 1e3
        print(f"{name:>40} {ms:8.3f} {tera / ms * 1e3:6.0f} TFLOP/s, {off([outs[name]], [outs['Triton']])}", flush=True)


def off(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> str:
    """Relative errors of what was written."""
    errors = (
        float((ours.float() - right.float()).norm() / right.float().norm())
        for ours, right in zip(found, wanted, strict=True)
    )
    return "off by " + " ".join(f"{error:.1e}" for error in errors)


def _attention(num_rows: int, first: int) -> tuple[Tensor, Rows, LayerCache, Tensor]:
    """Draw queries of rows from position `first` on, their pages, and sinks."""
    heads, kv_heads, dim = CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim
    num_pages = (first + num_rows) // PAGE_SIZE
    positions = first + torch.arange(num_rows, device=DEVICE)[None]
    pages = 1 + torch.randperm(num_pages, device=DEVICE)[None]
    rows = Rows(positions, torch.ones_like(positions, dtype=torch.bool), pages, first + num_rows)
    cache = LayerCache(*torch.randn(2, num_pages + 1, kv_heads, PAGE_SIZE, dim, device=DEVICE).bfloat16())
    queries, sinks = torch.randn(num_rows, heads, dim, device=DEVICE).bfloat16(), torch.randn(heads, device=DEVICE)
    return queries, rows, cache, sinks


def _in_tiles(rows: Rows) -> Rows:
    """Return the rows of one sequence as tiles, each with its table."""
    positions = rows.positions_SR.view(-1, PROMPT_TILE)
    return Rows(positions, rows.live_SR.view_as(positions), rows.table_SP.repeat(len(positions), 1), rows.max_length)


def _kernels(num_rows: int, matrices: list[BlockedMatrix], outputs: list[BlockedMatrix]) -> list[Kernel]:
    heads, kv_heads, dim = CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim
    queries, rows, cache, sinks = _attention(num_rows, 0)
    rope = RopeTable(*torch.randn(2, num_rows, dim // 2, device=DEVICE))
    residual, norm = (
        torch.randn(num_rows, CONFIG.hidden_size, device=DEVICE),
        torch.randn(CONFIG.hidden_size, device=DEVICE),
    )
    normed = Normed(residual.bfloat16(), residual.square().sum(1, keepdim=True))
    biases = torch.randn((heads + 2 * kv_heads) * dim, device=DEVICE)
    attend = partial(flash.flash_attend, queries, rows, cache, sinks_Q=sinks)

    def project(matrix: BlockedMatrix) -> Sequence[Tensor]:
        return qkv.qkv_rope_write(normed, matrix, biases, rows, cache, rope, eps=EPS), cache.k[1:], cache.v[1:]

    def add(matrix: BlockedMatrix) -> Sequence[Tensor]:
        out, split = gemm.add(queries.view(num_rows, heads * dim), matrix, norm, residual, norm)
        return out, *split

    return [
        Kernel(
            f"QKV{unpacking(matrices)}",
            QKV,
            qkv._config(num_rows, heads, kv_heads, DEVICE),
            (qkv, "_config"),
            project,
            matrices,
        ),
        Kernel(
            f"output{unpacking(outputs)}",
            OUTPUT,
            gemm._config(num_rows, DEVICE, True),
            (gemm, "_config"),
            add,
            outputs,
        ),
        Kernel("attention", WHOLE, flash._FULL, (flash, "_FULL"), lambda _: [attend(window=None)], [None] * 4),
        Kernel(
            "attention with a window",
            WINDOWED,
            flash._SLIDING,
            (flash, "_SLIDING"),
            lambda _: [attend(window=CONFIG.sliding_window)],
            [None] * 4,
        ),
    ]


def _head_kernel(num_rows: int, first: list[BlockedMatrix]) -> Kernel:
    taps = torch.randn(num_rows, first[0].num_columns, device=DEVICE).bfloat16()
    usual, place = gemm._config(num_rows, DEVICE, True), (gemm, "_config")
    return Kernel(f"head{unpacking(first)}", OUTPUT, usual, place, lambda matrix: [gemm.linear(taps, matrix)], first)


def unpacking(matrices: list[BlockedMatrix]) -> str:
    """The time that launches with steps of 64 columns spend before their product, which is theirs, too."""
    return f" (of which unpacking for STEP 64 {launch_us(tma._unpacked, matrices):.1f})"


def _drawn(num_rows: int, num_columns: int, number: int = MATRICES) -> list[BlockedMatrix]:
    return [
        BlockedMatrix.pack((torch.randn(num_rows, num_columns, device=DEVICE) / 50).bfloat16()) for _ in range(number)
    ]


if __name__ == "__main__":
    main()
