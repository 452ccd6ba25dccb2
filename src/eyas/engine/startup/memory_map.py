"""The memory in use by owner: the engine's tensors, and on a GPU all other use of it.

On a GPU the owners add up to what the driver counts as used, also by other programs, once all passes are captured;
`free` is what is then left.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from eyas.engine.step.runner import Runner
from eyas.model.devices import available_bytes
from eyas.model.weights import Head, TargetWeights, tensors_of

__all__ = ["driver_peak", "memory_map"]


def memory_map(weights: TargetWeights, head: Head | None, runner: Runner) -> dict[str, int]:
    """Return bytes by owner.

    state        tokens, page tables, parameters and waiting taps of the running sequences
    screen       the 8-bit copy of the lm_head, where there is one
    expert cache dequantised experts, once it is full (CPU)
    workspaces   tensors of kernels, samplers and rotary tables (GPU, like all that follow)
    graphs       memory pool of captured rounds and prompt passes
    allocator    blocks that it keeps for what is computed outside of graphs
    driver       context, kernels, nodes of graphs, and other programs
    """
    owned = {id(tensor) for tensor in tensors_of(weights)}
    kv = sum(part.nbytes for cache in (*runner.caches, *runner.drafter.caches) for part in cache.tensors)
    head_tensors = () if head is None else tensors_of(head.weights)
    named = {
        "weights": sum(tensor.nbytes for tensor in tensors_of(weights)),
        "head": sum(tensor.nbytes for tensor in head_tensors if id(tensor) not in owned),
        "kv": kv + runner.tap_pages_PC.nbytes,
        "state": runner.state.nbytes,
    }
    if runner.screen is not None:
        named["screen"] = runner.screen.nbytes
    device, cache = runner.state.device, runner.target.expert_cache
    if device.type == "cuda":
        return named | _rest_of_gpu(device, sum(named.values()))
    free = max(0, available_bytes(device) - cache.budget_bytes + cache.used_bytes)
    return named | {"expert cache": cache.budget_bytes, "free": free}


def _rest_of_gpu(device: torch.device, named_bytes: int) -> dict[str, int]:
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    graphs = allocated = 0
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] != (torch.cuda.current_device() if device.index is None else device.index):
            continue
        if tuple(segment["segment_pool_id"]) == (0, 0):
            allocated += segment["allocated_size"]
        else:  # graphs have a memory pool of their own
            graphs += segment["total_size"]
    return {
        "workspaces": max(0, allocated - named_bytes),
        "graphs": graphs,
        "allocator": reserved - graphs - allocated,
        "driver": total - free - reserved,
        "free": free,
    }


def driver_peak(device: torch.device, run: Callable[[], object]) -> int:
    """Run `run`, and return the bytes of a GPU that its driver counts as used at the allocator's peak."""
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device) + torch.cuda.max_memory_reserved(device)
