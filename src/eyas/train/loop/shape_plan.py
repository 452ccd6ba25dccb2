"""Plans training of a head for a published shape on a GPU that need not be here: memory by owner, passes, time.

Nothing is measured: rates are those of one H200 (`docs/log/training.md`), and are said to be predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from eyas.base.errors import UserError, nearest
from eyas.model.config import GptOssConfig
from eyas.model.making.presets import PRESETS
from eyas.train.heads.flops import Work
from eyas.train.heads.registry import find_making
from eyas.train.loop.memory import CHUNKS, TILES, head_bytes, teacher_bytes
from eyas.train.loop.planning import target_flops
from eyas.train.settings.schema import HeadSettings, TrainSettings
from eyas.train.states.memory import TargetMemory, at_once, longest_that_fits

__all__ = ["GPUS", "Gpu", "ShapePlan", "plan_shape"]

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
LONGEST = 1 << 20  # tokens, where no target has a limit
RESERVE = 0.03  # of a GPU's memory: the driver, workspaces, gaps between blocks


@dataclass(frozen=True, slots=True)
class Gpu:
    """Memory in bytes; FLOP/s of attention, forward and backward together, of all else in a step, and of prompts."""

    memory: int
    rest: float
    attention: float
    prompts: float


GPUS = {
    "h200": Gpu(143771 << 20, 475e12, 435e12, 430e12),
    "h100": Gpu(81559 << 20, 475e12, 435e12, 430e12),  # the same chip; its memory is slower
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapePlan:
    """Sizes of passes and what they need; `longest` is the longest document that fits, in the smallest passes.

    Where the head has a GPU of its own, `head_bytes_by_owner` is what lies there.
    """

    train: TrainSettings
    bytes_by_owner: dict[str, int]
    free: int
    head_bytes_by_owner: dict[str, int]
    head_free: int
    longest: int
    flops: dict[str, float]
    seconds: float  # of a step, the target's pass included where it is here

    @property
    def peak(self) -> int:
        return at_once(self.bytes_by_owner, DEVICE)

    @property
    def fits(self) -> bool:
        return self.peak <= self.free and sum(self.head_bytes_by_owner.values()) <= self.head_free


def plan_shape(
    shape: str,
    *,
    tokens: int,
    supervised: float,
    gpu: str,
    with_target: bool = True,
    depths: int = 7,
    head_gpu: str | None = None,
) -> ShapePlan:
    """Plan steps of one document whose end is supervised, `supervised` of its tokens. Raises UserError.

    The longest passes and then the largest tiles that fit are taken. Where nothing fits, the plan is that of the
    smallest.
    """
    if shape not in PRESETS:
        raise UserError(f"no shape '{shape}'{nearest(shape, PRESETS) or ': ' + ', '.join(PRESETS)}")
    if head_gpu is not None and not with_target:
        raise UserError("a head without its target has one GPU: name that")
    target, device = PRESETS[shape], _gpu(gpu)
    head_free = int(_gpu(head_gpu).memory * (1 - RESERVE)) if head_gpu else 0
    if with_target and tokens > target.max_context:
        raise UserError(f"{shape} reads up to {target.max_context} tokens")
    making = find_making("eagle3")
    config = making.fresh_config(HeadSettings(), target, context=tokens)
    free = int(device.memory * (1 - RESERVE))

    def owners(train: TrainSettings, length: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return the bytes by owner on the target's GPU, and on one that the head has of its own."""
        rows = min(length, round(supervised * length) + depths)
        found = _target_bytes(target, num_taps=len(config.taps), length=length, is_here=with_target)
        of_head = head_bytes(
            making, config, train,
            vocab_size=target.vocab_size, tokens=length, rows=rows, itemsize=DTYPE.itemsize,
        )  # fmt: skip

        if head_gpu is None:
            return found | of_head, {}
        return found, {"teacher": teacher_bytes(target, DTYPE.itemsize), "states": found["states"]} | of_head

    def fits(train: TrainSettings, length: int) -> bool:
        first, second = owners(train, length)
        return at_once(first, DEVICE) <= free and sum(second.values()) <= head_free

    settings = TrainSettings(depths=depths)
    choices = [replace(settings, chunk=chunk, tile=tile) for chunk in CHUNKS for tile in TILES]
    fitting = (one for one in choices if fits(one, tokens))
    train = next(fitting, choices[-1])
    flops = making.flops(config, _work(tokens, supervised, depths))
    rest = sum(value for part, value in flops.items() if part != "attention")
    seconds = rest / device.rest + flops["attention"] / device.attention
    if with_target:
        flops["target"] = target_flops(target, [tokens])
        seconds += flops["target"] / device.prompts
    first, second = owners(train, tokens)
    return ShapePlan(
        train=train,
        bytes_by_owner=first,
        free=free,
        head_bytes_by_owner=second,
        head_free=head_free,
        longest=longest_that_fits(
            lambda length: int(not fits(choices[-1], length)),
            free=0,
            at_most=target.max_context if with_target else LONGEST,
        ),
        flops=flops,
        seconds=seconds,
    )


def _gpu(name: str) -> Gpu:
    if name not in GPUS:
        raise UserError(f"no GPU '{name}'{nearest(name, GPUS) or ': ' + ', '.join(GPUS)}")
    return GPUS[name]


def _target_bytes(target: GptOssConfig, *, num_taps: int, length: int, is_here: bool) -> dict[str, int]:
    memory = TargetMemory(
        config=target,
        dtype=DTYPE,
        has_kernels=True,
        weight_bytes=_weight_bytes(target),
        expert_cache_bytes=0,
        num_taps=num_taps,
    )
    found = memory.owners(longest=length)
    if not is_here:  # states come from elsewhere; embedding and lm_head stay
        teacher = teacher_bytes(target, DTYPE.itemsize)
        return {"teacher": teacher, "states": found["states"]}
    return {owner: size for owner, size in found.items() if size}


def _weight_bytes(target: GptOssConfig) -> int:
    """Return the bytes of a target's weights: experts in MXFP4 (17 bytes for 32 values), other matrices in bf16."""
    query, key = target.num_heads * target.head_dim, target.num_kv_heads * target.head_dim
    experts = target.num_experts * 3 * target.hidden_size * target.intermediate_size * 17 // 32
    dense = target.hidden_size * (2 * query + 2 * key + target.num_experts)
    return target.num_layers * (experts + dense * 2) + 2 * target.vocab_size * target.hidden_size * 2


def _work(tokens: int, supervised: float, depths: int) -> Work:
    """Return the sizes of a step of one document whose end is supervised: each token at every depth."""
    taught = max(1, round(supervised * tokens))
    rows = min(tokens, taught + depths)
    keys = rows * tokens - rows * (rows - 1) // 2
    return Work(tokens=tokens, rows=rows, keys=keys, cells=depths * taught, positions=taught, depths=depths)
