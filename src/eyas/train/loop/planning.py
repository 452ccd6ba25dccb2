"""Estimates memory and time of a run from shapes, the chats, and one matrix product measured on the device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eyas.model.config import GptOssConfig
from eyas.model.devices import available_bytes
from eyas.train.heads.flops import Work
from eyas.train.loop.memory import device_bytes, fitted
from eyas.train.loop.parts import order_of
from eyas.train.loop.prepared import Prepared
from eyas.train.settings.schema import TrainSettings
from eyas.train.states.memory import at_once, longest_that_fits

__all__ = ["Plan", "make_plan", "product_speed", "target_flops"]

# Of a large product's speed, by steps measured on a CPU (the demo's head) and on an H200 (that of the 120b; small ones
# wait for launches).
UTILISATION = {"cpu": 0.39, "cuda": 0.65}
PROBE = 1024  # rows, columns and depth of the measured product on a CPU; four times that on a GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Needs of a run. `longest` is the longest context that fits, in tokens."""

    train: TrainSettings  # with the passes and tiles of a run
    bytes_by_device: dict[torch.device, dict[str, int]]
    longest: int
    num_documents: int
    num_tokens: int
    num_taught: int
    num_steps: int
    tokens_per_step: float
    filled: float  # share of a batch's tokens
    flops: float
    flops_per_second: float
    utilisation: float

    @property
    def seconds(self) -> float:
        return self.flops / (self.flops_per_second * self.utilisation)


def make_plan(prepared: Prepared) -> Plan:
    """Plan a run without loading weights. Raises UserError for settings that do not fit together."""
    prepared = fitted(prepared, free=available_bytes(prepared.head_device))
    settings, found = prepared.settings, prepared.found
    order = order_of(prepared, num_sequences=1)
    num_steps = settings.train.steps or order.num_steps(settings.train.epochs)
    lengths = [len(document) for document in prepared.training]
    work = _work(prepared)
    tokens_per_step = sum(lengths) / order.num_steps(1)
    epochs = num_steps / order.num_steps(1)
    flops = epochs * sum(prepared.making.flops(prepared.head_config, work).values())
    passes = 1.0 if settings.states.folder is None else 0.0
    width = (len(set().union(*prepared.taps.values())) + 1) * found.config.hidden_size * found.dtype.itemsize
    if sum(lengths) * width > settings.states.cache:  # otherwise the first epoch's states are kept
        passes *= epochs
    flops += passes * target_flops(found.config, lengths)
    by_device = device_bytes(prepared, longest=settings.data.context)
    return Plan(
        train=settings.train,
        bytes_by_device=by_device,
        longest=min(
            longest_that_fits(
                lambda length, device=device: at_once(device_bytes(prepared, longest=length)[device], device),  # type: ignore[misc]
                free=available_bytes(device),
                at_most=found.config.max_context,
            )
            for device in by_device
        ),
        num_documents=len(lengths),
        num_tokens=sum(lengths),
        num_taught=work.positions,
        num_steps=num_steps,
        tokens_per_step=tokens_per_step,
        filled=order.filled(),
        flops=flops,
        flops_per_second=product_speed(found.device, found.dtype),
        utilisation=UTILISATION[found.device.type],
    )


def _work(prepared: Prepared) -> Work:
    """Return the sizes of an epoch. A row for each taught token, which every depth teaches: a few are at neither."""
    depths = prepared.settings.train.depths
    taught = [np.flatnonzero(document.runs_T >= 0) for document in prepared.training]
    rows = sum(map(len, taught))
    return Work(
        tokens=sum(map(len, prepared.training)),
        rows=rows,
        keys=sum(int(places.sum()) + len(places) for places in taught),
        cells=depths * rows,
        positions=rows,
        depths=depths,
    )


def target_flops(config: GptOssConfig, lengths: Sequence[int]) -> float:
    """Return the FLOP of the target's pass over documents: two for each active parameter and token, and attention."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attn = config.hidden_size * (2 * query + 2 * key)
    experts = 3 * config.experts_per_token * config.hidden_size * config.intermediate_size
    active = config.num_layers * (attn + experts + config.hidden_size * config.num_experts)
    num_sliding = sum(config.layer_is_sliding)
    seen = sum(
        (config.num_layers - num_sliding) * length * length / 2
        + num_sliding * length * min(length, config.sliding_window)
        for length in lengths
    )
    return 2.0 * active * sum(lengths) + 4.0 * query * seen


def product_speed(device: torch.device, dtype: torch.dtype) -> float:
    """Measure a large matrix product in FLOP/s: the best of three."""
    size = PROBE if device.type == "cpu" else 4 * PROBE
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds[1:])
