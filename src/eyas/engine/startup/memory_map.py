"""The memory of an engine by owner, as it is: what its tensors take, and on a GPU whatever else is taken there.

On a GPU the owners add up to what the driver counts as used once prompts have been as long as they can be, also by
other programs; `free` is what is then left.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from eyas.engine.startup.memory import available_bytes
from eyas.engine.step.runner import Runner
from eyas.model.weights import Head, TargetWeights, tensors_of

__all__ = ["driver_peak", "memory_map"]


def memory_map(weights: TargetWeights, head: Head | None, runner: Runner, *, prompt_bytes: int) -> dict[str, int]:
    """Bytes by owner. `prompt_bytes` are those that the rows of a prompt need while they are computed.

    state        of the running sequences: tokens, page tables, settings, the taps that wait for the head
    expert cache dequantised experts, once it is full (CPU)
    workspaces   tensors of kernels, samplers and rotary tables (GPU, like all that follow)
    graphs       what captured rounds compute in
    prompts      what prompts compute in, and what the allocator keeps of it
    driver       context, kernels and nodes of graphs, and other programs
    """
    owned = {id(tensor) for tensor in tensors_of(weights)}
    kv = sum(cache.k.nbytes + cache.v.nbytes for cache in (*runner.caches, *runner.drafter.caches))
    head_tensors = () if head is None else tensors_of(head.weights)
    named = {
        "weights": sum(tensor.nbytes for tensor in tensors_of(weights)),
        "head": sum(tensor.nbytes for tensor in head_tensors if id(tensor) not in owned),
        "kv": kv + runner.tap_pages_PC.nbytes,
        "state": runner.state.nbytes,
    }
    device, cache = runner.state.device, runner.target.expert_cache
    if device.type == "cuda":
        return named | _rest_of_gpu(device, sum(named.values()), prompt_bytes)
    free = max(0, available_bytes(device) - cache.budget_bytes + cache.used_bytes)
    return named | {"expert cache": cache.budget_bytes, "free": free}


def _rest_of_gpu(device: torch.device, named_bytes: int, prompt_bytes: int) -> dict[str, int]:
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    graphs = allocated = 0
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] != (torch.cuda.current_device() if device.index is None else device.index):
            continue
        if tuple(segment["segment_pool_id"]) == (0, 0):
            allocated += segment["allocated_size"]
        else:  # graphs have a pool of their own
            graphs += segment["total_size"]
    kept = reserved - graphs - allocated
    prompts = max(prompt_bytes, kept)
    return {
        "workspaces": max(0, allocated - named_bytes),
        "graphs": graphs,
        "prompts": prompts,
        "driver": total - free - reserved,
        "free": max(0, free - (prompts - kept)),
    }


def driver_peak(device: torch.device, run: Callable[[], object]) -> int:
    """Bytes of a GPU that its driver counts as used when the allocator holds most, while `run` runs."""
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device) + torch.cuda.max_memory_reserved(device)
