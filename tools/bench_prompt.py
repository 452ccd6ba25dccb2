"""Times on a GPU which kernels a prompt pass spends its time in.

    python tools/bench_prompt.py [rows ...]

Weights are random, in the shapes of gpt-oss-120b (SIMULATED). A line for each kernel: microseconds and launches a
layer, and its share of all kernels. Above them the pass by CUDA events, launched by the host as in serving, and how
much of it no kernel ran in.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from statistics import median

import torch
from tests.model.support.poisoned import TILE, Paged, draw_target, packed, paged, poison_token
from torch.profiler import ProfilerActivity, profile

from eyas.bench.report import provenance
from eyas.kernels.triton.ops import PromptOps
from eyas.model.hardware import hardware
from eyas.model.making.presets import PRESETS
from eyas.model.networks.gpt_oss import GptOss

NUM_LAYERS = 12
CONFIG = replace(PRESETS["gpt-oss-120b"], num_layers=NUM_LAYERS, layer_is_sliding=(True, False) * (NUM_LAYERS // 2))
ROWS = (128, 1024, 8192)
WARM, TURNS = 3, 7
DEVICE = torch.device("cuda")


def main() -> None:
    lines, _ = provenance(hardware(DEVICE))
    print("\n".join(lines))
    with torch.inference_mode():
        weights = packed(draw_target(CONFIG, DEVICE))
        for rows in map(int, sys.argv[1:] or ROWS):
            target = GptOss(CONFIG, weights, max_positions=rows + TILE)
            show(rows, paged(target, [rows]))


def show(rows: int, cache: Paged) -> None:
    """Print the parts of a pass over `rows` tokens, the first of their sequence."""
    tokens_N = torch.randint(poison_token(CONFIG), (rows,), device=DEVICE)
    ops = PromptOps()

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


def timed(run) -> float:  # noqa: ANN001
    """Microseconds of a pass."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


if __name__ == "__main__":
    main()
