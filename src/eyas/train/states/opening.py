"""Finds the frozen target and loads it for training: looks at its files first, at memory next, then reads weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.model.checkpoints.device_layout import pack_layer, pack_lm_head
from eyas.model.checkpoints.fingerprint import fingerprint
from eyas.model.checkpoints.hub import resolve, resolve_headers
from eyas.model.checkpoints.loader import inspect_target, load_target
from eyas.model.checkpoints.placing import can_use_kernels, weight_bytes
from eyas.model.checkpoints.shards import Progress, read_headers
from eyas.model.config import GptOssConfig
from eyas.model.devices import available_bytes, pick_device
from eyas.model.prompt_memory import expert_bytes
from eyas.train.states.memory import TargetMemory, check_memory
from eyas.train.states.target import TargetStates
from eyas.train.types import Teacher

__all__ = ["FoundTarget", "find_target", "open_target"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTarget:
    """A target of which the JSON files and headers were read, and the device that will compute it."""

    name: str  # as asked for: demo, a folder or a hub id
    config: GptOssConfig
    device: torch.device
    dtype: torch.dtype  # of matrices
    has_kernels: bool
    weight_bytes: int
    fingerprint: str | None  # None while the weights are only on the hub

    def memory(self, *, num_taps: int) -> TargetMemory:
        """Return what the target's memory follows from. Dequantised experts get a quarter of what a CPU has free."""
        experts = 0
        if self.device.type == "cpu" and self.config.expert_format == "mxfp4":
            experts = min(expert_bytes(self.config, self.dtype), available_bytes(self.device) // 4)
        return TargetMemory(
            config=self.config,
            dtype=self.dtype,
            has_kernels=self.has_kernels,
            weight_bytes=self.weight_bytes,
            expert_cache_bytes=experts,
            num_taps=num_taps,
        )


def find_target(model: str, *, device: str = "auto") -> FoundTarget:
    """Read a target's configuration and headers; weights that are only on the hub stay there.

    `model` is "demo", a folder or a hub id. Raises UserError: no such model, no gpt-oss model, no such device.
    """
    where, dtype = pick_device(device)
    folder, headers = resolve_headers(model)
    config, stored, _ = inspect_target(folder, headers)
    return FoundTarget(
        name=model,
        config=config,
        device=where,
        dtype=dtype,
        has_kernels=can_use_kernels(where, config),
        weight_bytes=weight_bytes(stored.values(), dtype, packed=where.type == "cuda"),
        fingerprint=fingerprint(folder, stored) if headers is None else None,
    )


def open_target(
    found: FoundTarget,
    *,
    taps: tuple[int, ...],
    longest: int,
    batch_tokens: int = 0,
    cache_bytes: int = 0,
    progress: Progress | None = None,
) -> TargetStates:
    """Load the weights, downloaded if need be, and allocate caches for documents of up to `longest` tokens.

    `batch_tokens` are those of a packed batch, `cache_bytes` is for states that are kept. Raises UserError, before
    anything is allocated, if memory does not suffice.
    """
    memory = found.memory(num_taps=len(taps))
    kept = cache_bytes if found.device.type == "cpu" else 0
    check_memory(
        lambda length: memory.owners(longest=length, batch_tokens=batch_tokens, cache_bytes=kept),
        longest=longest,
        device=found.device,
        free=available_bytes(found.device),
    )
    folder = resolve(found.name)
    stored = read_headers(folder)
    config, weights = load_target(
        folder,
        device=found.device,
        dtype=found.dtype,
        inspected=inspect_target(folder, stored),
        progress=progress,
        layout=pack_layer if found.has_kernels else None,
    )
    teacher = Teacher(weights.embed_VH, weights.lm_head_VH)
    return TargetStates(
        config,
        pack_lm_head(weights) if found.has_kernels else weights,
        teacher,
        taps=taps,
        longest=longest,
        fingerprint=fingerprint(folder, stored),
        expert_cache_bytes=memory.expert_cache_bytes,
    )
