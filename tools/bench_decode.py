"""Times on a GPU what a round of few rows can do in two ways: matrices in bf16 or 12 bits, lm_heads whole or screened.

    python tools/bench_decode.py

Weights are random, in the shapes of gpt-oss-120b (SIMULATED). Times are of CUDA graphs, in microseconds, the median of
turns (and their range). Each product has 14 matrices, so that none is left in the L2 cache by the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from eyas.bench.report import provenance
from eyas.engine.round.state import DeviceState
from eyas.engine.sampling.screened_logits import MAX_ROWS, ScreenedLogits
from eyas.kernels.cuda import linear
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.norm import Normed
from eyas.kernels.triton import stream
from eyas.model.hardware import hardware

HIDDEN, HEADS_OUT, QKV_OUT, VOCAB = 2880, 4096, 5120, 201_088
EPS = 1e-5
MATRICES, TURNS, REPLAYS = 14, 9, 20
DEVICE = torch.device("cuda")


def main() -> None:
    lines, _ = provenance(hardware(DEVICE))
    print("\n".join([*lines, f"limit     {stream.read_bandwidth(DEVICE) / 1e12:.2f} TB/s, streaming read"]))
    with torch.inference_mode():
        products()
        lm_heads()


def products() -> None:
    """Print attention's two products with the matrix as published and with its copy."""
    for name, (num_rows, num_columns) in {"qkv": (QKV_OUT, HIDDEN), "output": (HIDDEN, HEADS_OUT)}.items():
        plain = [packed(num_rows, num_columns) for _ in range(MATRICES)]
        copied = [matrix.with_12_bits() for matrix in plain]
        for rows in (1, 2, 4, 8, 9, 16):
            x_TK = torch.randn(rows, num_columns, device=DEVICE).bfloat16()
            run = added(x_TK, num_rows) if name == "output" else projected(x_TK)
            times = in_turn([each(run, matrices) for matrices in (plain, copied)])
            show(f"{name} {rows} rows", {"bf16": times[0], "12 bits": times[1]}, MATRICES)


def lm_heads() -> None:
    """Print the logits of a round, all of them and screened, and the parts of the latter."""
    lm_head = packed(VOCAB, HIDDEN)
    rough = RoughMatrix.of(lm_head)
    assert rough is not None
    for temperature in (0.0, 1.0):
        screened = ScreenedLogits(lm_head, rough, state_of(temperature), EPS)
        for rows in (1, 2, 4, 8):
            show_lm_head(lm_head, rough, screened, rows, f"lm_head {rows} rows, temperature {temperature:g}")


def show_lm_head(lm_head: BlockedMatrix, rough: RoughMatrix, screened: ScreenedLogits, rows: int, name: str) -> None:
    hidden, out = torch.randn(rows, HIDDEN, device=DEVICE) * 3, torch.empty(rows, VOCAB, device=DEVICE)
    normed = Normed(hidden.bfloat16(), hidden.square().unflatten(1, (-1, 16)).sum(-1))
    slots, live = torch.arange(rows, device=DEVICE), torch.ones(rows, 1, dtype=torch.bool, device=DEVICE)
    space = screened.space

    def product(matrix: BlockedMatrix, wanted: Tensor | None) -> Callable[[], object]:
        return lambda: linear.logits(normed, matrix, EPS, out=out, wanted=wanted)

    def screen() -> object:
        return screened.logits(normed, slots, live, out)

    space.pass_over.zero_()
    screen()
    tiles = int(space.wanted[0])
    ways = {
        "whole": product(lm_head, None),
        "screened": screen,
        "rough": product(rough.matrix, space.pass_over),
        "listed": product(lm_head, space.wanted),
    }
    times = dict(zip(ways, in_turn(list(ways.values())), strict=True))
    space.pass_over[:1].fill_(1)
    times |= {"passed over": in_turn([screen])[0]}
    show(f"{name}, {tiles} tiles", times, 1)


def packed(num_rows: int, num_columns: int) -> BlockedMatrix:
    weight = torch.randn(num_rows, num_columns, device=DEVICE) / num_columns**0.5
    return BlockedMatrix.pack(weight.bfloat16())


def added(x_TK: Tensor, width: int) -> Callable[[BlockedMatrix], object]:
    """Return attention's output product with residual and norm."""
    bias, norm = torch.randn(width, device=DEVICE), torch.randn(width, device=DEVICE)
    residual, workspace = torch.randn(len(x_TK), width, device=DEVICE), linear.Workspace(DEVICE)
    return lambda matrix: linear.add(x_TK, matrix, bias, residual, norm, workspace)


def projected(x_TK: Tensor) -> Callable[[BlockedMatrix], object]:
    return lambda matrix: linear.project(x_TK, matrix)


def each(run: Callable[[BlockedMatrix], object], matrices: list[BlockedMatrix]) -> Callable[[], None]:
    def all_of_them() -> None:
        for matrix in matrices:
            run(matrix)

    return all_of_them


def state_of(temperature: float) -> DeviceState:
    state = DeviceState(
        num_slots=MAX_ROWS, max_positions=4096, page_size=16, vocab_size=VOCAB, tap_width=0, tap_ring=1,
        tap_dtype=torch.bfloat16, device=DEVICE,
    )  # fmt: skip
    state.sampling.temperature.fill_(temperature)
    state.sampling.top_p.fill_(1)
    state.sampling.seed.copy_(torch.arange(len(state.sampling.seed), device=DEVICE) * 7919)
    return state


def in_turn(runs: list[Callable[[], object]]) -> list[list[float]]:
    """Return microseconds of each run by turn: forwards, then backwards."""
    graphs, times = [captured(run) for run in runs], [list[float]() for _ in runs]
    for turn in range(TURNS):
        for place in range(len(runs)) if turn % 2 else reversed(range(len(runs))):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(REPLAYS):
                graphs[place].replay()
            end.record()
            end.synchronize()
            times[place].append(1e3 * start.elapsed_time(end) / REPLAYS)
    return times


def captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def show(name: str, times: dict[str, list[float]], count: int) -> None:
    """Print times of one of `count` runs, and their ratios to the first."""
    base = median(next(iter(times.values())))
    parts = [
        f"{way} {median(of_way) / count:.2f} ({min(of_way) / count:.2f}..{max(of_way) / count:.2f}), "
        f"x{median(of_way) / base:.3f}"
        for way, of_way in times.items()
    ]
    print(f"{name}: {'; '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
