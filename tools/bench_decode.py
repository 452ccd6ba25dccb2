"""Times on a GPU the parts of a round: matrices in bf16 and 12 bits, lm_heads whole and screened, experts, more rows,
attention behind short and long contexts.

    python tools/bench_decode.py [products] [lm_heads] [experts] [more_rows] [attention]

Weights are random, in the shapes of gpt-oss-120b (SIMULATED). Times are of CUDA graphs, in microseconds, the median of
turns (and their range). Each product has 14 matrices, so that none is left in the L2 cache by the one before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from eyas.bench.report import provenance
from eyas.engine.round.state import DeviceState
from eyas.engine.sampling.screened_logits import MAX_ROWS, ScreenedLogits
from eyas.kernels.cuda.attention import attend_plan
from eyas.kernels.cuda.attention.attend import attend, attend_workspace
from eyas.kernels.cuda.dense import linear
from eyas.kernels.cuda.moe import moe
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.layouts.mxfp4 import PackedExperts, pack_experts
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.layers.ops import LayerCache, Product, RopeTable, Rows
from eyas.kernels.triton import stream
from eyas.model.hardware import hardware

HIDDEN, HEADS_OUT, QKV_OUT, VOCAB = 2880, 4096, 5120, 201_088
SHAPES = {
    "qkv": (QKV_OUT, HIDDEN), "output": (HIDDEN, HEADS_OUT), "head's qkv": (QKV_OUT, 2 * HIDDEN),
    "fc": (HIDDEN, 3 * HIDDEN), "gate and up": (12 * HIDDEN, HIDDEN), "down": (HIDDEN, 6 * HIDDEN),
    "draft vocabulary": (32_000, HIDDEN), "lm_head": (VOCAB, HIDDEN),
}  # fmt: skip
EPS = 1e-5
EXPERTS, TOP_K, LAYERS = 128, 4, 12
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, FULL_LAYERS = 64, 8, 64, 16, 18
CONTEXTS = 128, 32_640
MATRICES, TURNS, REPLAYS = 14, 9, 20
DEVICE = torch.device("cuda")


def main() -> None:
    lines, _ = provenance(hardware(DEVICE))
    print("\n".join([*lines, f"limit     {stream.read_bandwidth(DEVICE) / 1e12:.2f} TB/s, streaming read"]))
    with torch.inference_mode():
        parts = {part.__name__: part for part in (products, lm_heads, experts, more_rows, attention)}
        for name in sys.argv[1:] or parts:
            parts[name]()


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


def experts() -> None:
    """Print the experts of a layer by rows, and the bytes of the distinct experts over the bandwidth."""
    layers = [ExpertLayer() for _ in range(LAYERS)]
    for rows in (1, 2, 4, 8, 16, 32, 64):
        show_experts(layers, rows, {"ours": None})


def more_rows() -> None:
    """Print dense products of a layer and a head."""
    for name, (width, num_columns) in SHAPES.items():
        matrices = [packed(width, num_columns) for _ in range(1 if width == VOCAB else MATRICES)]
        if name == "gate and up":
            matrices = [replace(matrix, gated=True) for matrix in matrices]
        limit = 1e6 * matrices[0].data.nbytes / stream.read_bandwidth(DEVICE)
        for rows in (17, 32, 64, 96, 128, 256):
            times = in_turn([each(product_of(name, rows, width, num_columns), matrices)])
            show(f"{name} {rows} rows, limit {limit:.1f}", {"ours": times[0]}, len(matrices))
        del matrices
        torch.cuda.empty_cache()


def attention() -> None:
    """Print full attention between a layer's QKV and output products, behind contexts of 128 and 32,640 tokens."""
    layers = [(packed(QKV_OUT, HIDDEN), packed(HIDDEN, HEADS_OUT)) for _ in range(FULL_LAYERS)]
    shape = CONTEXTS[-1] // PAGE_SIZE + 2, KV_HEADS, PAGE_SIZE, HEAD_DIM
    for in_fp8 in (False, True):
        caches = [LayerCache.zeros(shape, torch.bfloat16, DEVICE, in_fp8=in_fp8) for _ in layers]
        for rows in (1, 4):
            runs = [attention_of(layers, caches, rows, context) for context in CONTEXTS]
            times = [median(of_run) / FULL_LAYERS for of_run in in_turn(runs)]
            texts = ", ".join(f"{us:.2f} behind {context}" for us, context in zip(times, CONTEXTS, strict=True))
            print(f"attention, {'8' if in_fp8 else '16'} bits, {rows} rows: {texts}, {times[-1] - times[0]:.2f} more")
        del caches
        torch.cuda.empty_cache()


def attention_of(
    layers: list[tuple[BlockedMatrix, BlockedMatrix]], caches: list[LayerCache], num_rows: int, context: int
) -> Callable[[], None]:
    """Return the attention of layers for the next rows of one sequence, which has `context` tokens."""
    num_pages, positions_SR = len(caches[0].k), (context + torch.arange(num_rows, device=DEVICE))[None]
    table_SP = 1 + torch.randperm(num_pages - 1, device=DEVICE)[None]
    live_SR, most = torch.ones_like(positions_SR, dtype=torch.bool), (num_pages - 1) * PAGE_SIZE
    rows, limits = Rows(positions_SR, live_SR, table_SP, most), device_limits(DEVICE)
    rows = rows._replace(plan=attend_plan.plan(rows, HEADS, KV_HEADS, limits, in_fp8=caches[0].in_fp8))
    rope = RopeTable(torch.ones(most, HEAD_DIM // 2, device=DEVICE), torch.zeros(most, HEAD_DIM // 2, device=DEVICE))
    x_TK = torch.randn(num_rows, HIDDEN, device=DEVICE).bfloat16()
    add = added(torch.randn(num_rows, HEADS_OUT, device=DEVICE).bfloat16(), HIDDEN)
    bias, sinks, space = (
        torch.zeros(QKV_OUT, device=DEVICE),
        torch.zeros(HEADS, device=DEVICE),
        attend_workspace(DEVICE),
    )

    def run() -> None:
        for (qkv, output), cache in zip(layers, caches, strict=True):
            product = Product(linear.project(x_TK, qkv), None, HIDDEN)
            attend(product, rows, cache, rope, eps=EPS, bias_N=bias, sinks_Q=sinks, window=None, workspace=space)
            add(output)

    return run


def product_of(name: str, rows: int, width: int, num_columns: int) -> Callable[[BlockedMatrix], Tensor]:
    """Return a function that multiplies random rows by a matrix, as a round does under this name."""
    x_TK = torch.randn(rows, num_columns, device=DEVICE).bfloat16()
    sums = x_TK.float().square().unflatten(1, (-1, 16)).sum(-1)
    normed, workspace = Normed(x_TK, sums), linear.Workspace(DEVICE)
    if name == "output":
        add = added(x_TK, width)
        return lambda matrix: add(matrix)[0]
    if name.endswith("qkv"):
        return lambda matrix: linear.project(x_TK, matrix)
    if name in ("fc", "down"):
        return lambda matrix: linear.linear(x_TK, matrix, workspace)
    if name == "gate and up":
        return lambda matrix: linear.gated(normed, matrix, EPS)
    out = torch.empty(rows, width, device=DEVICE)
    return lambda matrix: linear.logits(normed, matrix, EPS, out=out)


class ExpertLayer:
    """The experts of a layer, of random bits."""

    def __init__(self) -> None:
        self.gate_up, self.down = self.packed(2 * HIDDEN), self.packed(HIDDEN)
        self.gate_up_bias = torch.randn(EXPERTS, 2 * HIDDEN, device=DEVICE)
        self.down_bias, self.norm = torch.randn(EXPERTS, HIDDEN, device=DEVICE), torch.rand(HIDDEN, device=DEVICE)

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for one in (self.gate_up, self.down) for x in (one.words, one.scales))

    def packed(self, num_rows: int) -> PackedExperts:
        shape = EXPERTS, num_rows, HIDDEN // 32
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, device=DEVICE)
        return pack_experts(blocks, torch.randint(118, 124, shape, dtype=torch.uint8, device=DEVICE))

    def inputs(self, rows: int) -> tuple[Normed, Tensor, Tensor, Tensor]:
        """Return normed rows, logits, which rows are live, and the residual."""
        normed = torch.randn(rows, HIDDEN, device=DEVICE).bfloat16()
        sums = normed.float().square().unflatten(1, (-1, 16)).sum(-1)
        live = torch.ones(rows, dtype=torch.bool, device=DEVICE)
        logits, residual = torch.randn(rows, EXPERTS, device=DEVICE), torch.randn(rows, HIDDEN, device=DEVICE)
        return Normed(normed, sums), logits, live, residual

    def run(self, inputs: tuple[Normed, Tensor, Tensor, Tensor], workspace: moe.Workspace) -> object:
        normed, logits, live, residual = inputs
        up = moe.moe_up(normed, self.gate_up, self.gate_up_bias, top_k=TOP_K, limit=7.0, eps=EPS)
        return moe.moe_down(up, logits, live, self.down, self.down_bias, residual, self.norm, workspace)


def show_experts(layers: list[ExpertLayer], rows: int, ways: Mapping[str, Callable[[], None] | None]) -> None:
    """`ways`: what is done before a graph is captured, by name."""
    inputs = [layer.inputs(rows) for layer in layers]
    distinct = sum(len(logits.topk(TOP_K).indices.unique()) for _, logits, _, _ in inputs) / len(layers)
    workspace = moe.Workspace(rows, TOP_K, HIDDEN, HIDDEN, DEVICE)

    def run(before: Callable[[], None] | None) -> Callable[[], None]:
        def all_of_them() -> None:
            if before is not None:
                before()
            for layer, arguments in zip(layers, inputs, strict=True):
                layer.run(arguments, workspace)

        return all_of_them

    times = in_turn([run(before) for before in ways.values()])
    num_bytes = distinct / EXPERTS * layers[0].num_bytes
    limit = 1e6 * num_bytes / stream.read_bandwidth(DEVICE)
    show(
        f"experts {rows} rows, {distinct:.1f} distinct, limit {limit:.1f}", dict(zip(ways, times, strict=True)), LAYERS
    )


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


def added(x_TK: Tensor, width: int) -> Callable[[BlockedMatrix], tuple[Tensor, Normed]]:
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
