"""Times on a GPU which kernels a prompt pass spends its time in.

    python -m tools.bench_prompt [--triton] [rows ...]
    python -m tools.bench_prompt --routing [--before FILE] [rows ...]
    python -m tools.bench_prompt --experts [rows ...]

Weights are random, in the shapes of gpt-oss-120b (SIMULATED). A line for each kernel: microseconds and launches a
layer, and its share of all kernels. Above them the pass by CUDA events, and how much of it no kernel ran in: the host
launches one after the other here, while an engine replays a graph. --triton: experts by Triton's kernel on Hopper, too.

--routing: the router alone in graphs, with every tile of rows, and beside it the `route.py` of an earlier commit
(`git show f9dc7724:src/eyas/kernels/triton/route.py > before.py`), whose counters are a launch of their own.
--experts: both products of the experts in graphs, by Triton and by kernels/cuda/moe/experts.cu, and what sorts rows by
expert beside them.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from tests.model.support.poisoned import TILE, Paged, draw_target, packed, paged, poison_token
from tools.bench_decode import LAYERS as EXPERT_LAYERS
from tools.bench_decode import ExpertLayer
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from eyas.bench.report import provenance
from eyas.kernels.cuda.attention.flash import hopper_attention
from eyas.kernels.cuda.moe import experts as cuda_experts
from eyas.kernels.cuda.moe import moe
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.triton import stream
from eyas.kernels.triton.prompts import experts, route
from eyas.kernels.triton.prompts.ops import PromptOps
from eyas.model.hardware import hardware
from eyas.model.making.presets import PRESETS
from eyas.model.networks.gpt_oss import GptOss

NUM_LAYERS = 12
CONFIG = replace(PRESETS["gpt-oss-120b"], num_layers=NUM_LAYERS, layer_is_sliding=(True, False) * (NUM_LAYERS // 2))
ROWS = (128, 1024, 8192)
ROUTED_ROWS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
TILES = (16, 32, 64)  # rows
ROUTERS = 144  # 106 MB, so that each launch finds its matrix outside the L2 cache
EXPERT_ROWS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
WARM, TURNS = 3, 7
DEVICE = torch.device("cuda")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="*")
    parser.add_argument("--triton", action="store_true")
    parser.add_argument("--routing", action="store_true")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--experts", action="store_true")
    asked = parser.parse_args()
    lines, _ = provenance(hardware(DEVICE))
    print("\n".join(lines))
    with torch.inference_mode():
        if asked.routing:
            show_routing(asked.rows or ROUTED_ROWS, asked.before and module(asked.before))
            return
        if asked.experts:
            show_experts(asked.rows or EXPERT_ROWS)
            return
        weights = packed(draw_target(CONFIG, DEVICE))
        for rows in asked.rows or ROWS:
            target = GptOss(CONFIG, weights, max_positions=rows + TILE)
            show(
                rows,
                paged(target, [rows]),
                PromptOps()
                if asked.triton
                else PromptOps(cuda_experts.hopper_products(CONFIG, DEVICE, rows), hopper_attention(DEVICE)),
            )


def show(rows: int, cache: Paged, ops: PromptOps) -> None:
    """Print the parts of a pass over `rows` tokens, the first of their sequence."""
    tokens_N = torch.randint(poison_token(CONFIG), (rows,), device=DEVICE)

    def run() -> None:
        cache.prompt(0, tokens_N, 0, rows, ops)

    for _ in range(WARM):
        run()
    pass_us = median(timed(run) for _ in range(TURNS))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(TURNS):
            run()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in seen.events():
        if event.device_time_total:  # not the launches
            times[event.name].append(event.device_time_total)
    total = sum(map(sum, times.values())) / TURNS
    print(
        f"\n{rows} rows: {pass_us / NUM_LAYERS:.1f} us a layer, {(pass_us - total) / NUM_LAYERS:.1f} without a kernel"
    )
    for name, spent in sorted(times.items(), key=lambda item: -sum(item[1])):
        launches, of_layer = len(spent) / TURNS / NUM_LAYERS, sum(spent) / TURNS / NUM_LAYERS
        print(f"{of_layer:8.1f} us {launches:5.1f} x {of_layer * NUM_LAYERS / total:5.1%}  {name[:80]}")


def show_routing(all_rows: list[int] | tuple[int, ...], before: ModuleType | None) -> None:
    """Print microseconds of a launch by number of rows and form; bits of all tiles must be the same."""
    width, num_experts = CONFIG.hidden_size, CONFIG.num_experts
    routers = [
        BlockedMatrix.pack((torch.randn(num_experts, width, device=DEVICE) / 50).bfloat16()) for _ in range(ROUTERS)
    ]
    bias_E = torch.randn(num_experts, device=DEVICE)
    usual = route._tile_rows
    names = [f"tile {rows}" for rows in TILES] + (["before"] if before else [])
    print("\nrouter, us a launch; * is the tile of a pass", "".join(f"{name:>10}" for name in names))
    for rows in all_rows:
        x_TH = torch.randn(rows, width, device=DEVICE)
        normed = Normed(x_TH.bfloat16(), x_TH.square().sum(1, keepdim=True))
        live_T = torch.ones(rows, dtype=torch.bool, device=DEVICE)
        common = {"bias_E": bias_E, "top_k": CONFIG.experts_per_token, "eps": CONFIG.rms_norm_eps}
        cells, seen = [], []
        for tile in TILES:
            route._tile_rows = lambda _, tile=tile: tile
            tally = route.Tally.zeros(num_experts, rows, DEVICE)
            run = partial(routed, route, normed, live_T, tally=tally, **common)
            seen.append(run(routers[0]))
            cells.append(f"{launch_us(run, routers):.1f}" + " *"[tile == usual(rows)])
        route._tile_rows = usual
        same = all(torch.equal(a, b) for other in seen[1:] for a, b in zip(seen[0][:2], other[:2], strict=True))
        same &= all(torch.equal(seen[0].weights_TK, other.weights_TK) for other in seen[1:])
        note = "" if same else "  BITS DIFFER between tiles"
        if before is not None:
            run = partial(routed, before, normed, live_T, **common)
            note += f"  ids as before: {(run(routers[0]).ids_TK == seen[0].ids_TK).float().mean():.3%}"
            cells.append(f"{launch_us(run, routers):.1f} ")
        print(f"{rows:>6} rows" + " " * 34 + "".join(f"{cell:>10}" for cell in cells) + note)


def routed(form: ModuleType, normed: Normed, live_T: Tensor, router: BlockedMatrix, **common: Any) -> Any:
    return form.route_rows(normed, live_T, router, **common)


def show_experts(all_rows: Sequence[int]) -> None:
    """Print microseconds of a layer's two products."""
    layers = [ExpertLayer() for _ in range(EXPERT_LAYERS)]
    bandwidth = stream.read_bandwidth(DEVICE)
    for rows in all_rows:
        normed, _, live_T, _ = layers[0].inputs(rows)
        router = BlockedMatrix.pack(
            (torch.randn(CONFIG.num_experts, CONFIG.hidden_size, device=DEVICE) / 50).bfloat16()
        )
        bias_E, top_k = torch.zeros(CONFIG.num_experts, device=DEVICE), CONFIG.experts_per_token
        routing = route.route_rows(normed, live_T, router, bias_E, top_k=top_k, eps=CONFIG.rms_norm_eps)
        tile = experts.expert_tile_rows(rows * top_k, CONFIG.num_experts)
        groups = route.group(normed.rows_TH, routing, tile)
        distinct = int((routing.tally.counts_E > 0).sum())
        limit = 1e6 * distinct * layers[0].num_bytes / CONFIG.num_experts / bandwidth
        print(f"\n{rows} rows, tiles of {tile}, {distinct} experts, limit {limit:.0f} us; * is the tile of a pass")

        def run(layer: ExpertLayer, routing: route.Routing = routing, groups: route.Groups = groups) -> Tensor:
            act = experts.experts_up(routing, groups, layer.gate_up, layer.gate_up_bias, limit=7.0)
            return experts.experts_down(act, routing, groups, layer.down, layer.down_bias)

        wanted = run(layers[0])
        show_wgmma(layers, normed, routing, wanted)
        print(f"{'Triton':>20} {launch_us(run, layers):8.1f}", flush=True)


def show_wgmma(layers: Sequence[ExpertLayer], normed: Normed, routing: route.Routing, wanted: Tensor) -> None:
    """Print microseconds of the kernels of `kernels/cuda/moe/experts.cu` by rows of a tile."""
    rows, top_k, num_experts = normed.rows_TH, CONFIG.experts_per_token, CONFIG.num_experts
    num_pairs = len(rows) * top_k
    usual, tile = cuda_experts.tile_rows(num_pairs, num_experts), experts.expert_tile_rows(num_pairs, num_experts)
    sorting = launch_us(lambda _: route.group(rows, routing, tile), layers)
    print(f"{'sorting, Triton':>20} {sorting:8.1f}")
    for tile in cuda_experts.MATH_WARPS:
        if num_pairs // tile + num_experts > cuda_experts.MAX_TILES:
            continue

        def sort(_: object = None, tile: int = tile) -> cuda_experts.Entries:
            return cuda_experts.group(
                rows, routing.ids_TK, routing.places_TK, routing.tally.counts_E, routing.inverse_rms_T, tile
            )

        entries = sort()

        def run(layer: ExpertLayer, entries: cuda_experts.Entries = entries) -> Tensor:
            act = cuda_experts.up(entries, layer.gate_up, layer.gate_up_bias, top_k=top_k, limit=7.0)
            return cuda_experts.down(act, layer.down, layer.down_bias, top_k=top_k)

        error = float((run(layers[0]).float() - wanted.float()).norm() / wanted.float().norm())
        spent, sorting = launch_us(run, layers), launch_us(sort, layers)
        mark = " *" if tile == usual and len(rows) > cuda_experts.FEW_ROWS else ""
        print(
            f"{f'wgmma, tiles of {tile}':>20} {spent:8.1f}{mark}  sorting {sorting:.1f}, off by {error:.1e}", flush=True
        )

    if len(rows) <= 512:
        workspace = moe.Workspace(len(rows), top_k, 0, CONFIG.intermediate_size, DEVICE)

        def run_few(layer: ExpertLayer) -> Tensor:
            matrices = layer.gate_up, layer.gate_up_bias, layer.down, layer.down_bias
            return moe.outputs(rows, routing.ids_TK, routing.inverse_rms_T, *matrices, workspace, limit=7.0)

        same = "same" if torch.equal(run_few(layers[0]), run(layers[0])) else "OTHER"
        mark = " *" if len(rows) <= cuda_experts.FEW_ROWS else ""
        print(f"{'few, with sorting':>20} {launch_us(run_few, layers):8.1f}{mark}  {same} bits", flush=True)


def launch_us(run: Callable[..., object], matrices: Sequence[object]) -> float:
    """Microseconds of a launch, one for each of the matrices in a graph, the median of turns."""

    def all_of_them() -> None:
        for one in matrices:
            run(one)

    all_of_them()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_of_them()
    graph.replay()
    return median(timed(graph.replay) for _ in range(TURNS)) / len(matrices)


def module(path: Path) -> ModuleType:
    """Import a file as a module of its own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def timed(run: Callable[[], object]) -> float:
    """Microseconds of a pass."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


if __name__ == "__main__":
    main()
