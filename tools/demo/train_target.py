"""Phase one: the target, on packed rows, the last part of the time with experts rounded to MXFP4 at every step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from data import CONTEXT, GENERATED, TEXT, Shard
from optim import Clock, Muon, cosine
from target import TargetModel, block, hidden_states, token_loss
from torch import Tensor

__all__ = ["device_batch", "loss_weights", "train_target"]

QUANTIZED_FROM = 0.7  # of the time
BALANCE_WEIGHT = 0.01
MUON_LR, ADAM_LR = 0.02, 3e-3
MUON_NAMES = ("q", "k", "v", "o", "gate_up", "down")
TOKEN_WEIGHTS = {GENERATED: 1.0, CONTEXT: 0.1, TEXT: 0.3}  # IGNORED: none


def device_batch(shard: Shard, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, codes, docs) int64 [B, T]."""
    ids, codes, docs = (torch.from_numpy(part.astype("int64")).to(device, non_blocking=True) for part in shard)
    return ids, codes, docs


def loss_weights(codes_BT: Tensor, docs_BT: Tensor) -> Tensor:
    """Weight of predicting token t + 1 at t: by its code, zero across documents and at the end of a row."""
    table = torch.tensor([TOKEN_WEIGHTS.get(code, 0.0) for code in range(4)], device=codes_BT.device)
    weights = table[codes_BT.roll(-1, 1)] * (docs_BT == docs_BT.roll(-1, 1))
    weights[:, -1] = 0
    return weights


def optimizers(model: TargetModel) -> list[torch.optim.Optimizer]:
    named = dict(model.named_parameters())
    rest = [parameter for name, parameter in named.items() if name not in MUON_NAMES]
    fused = model.embed.is_cuda
    return [
        Muon([named[name] for name in MUON_NAMES], lr=MUON_LR),
        torch.optim.AdamW(rest, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0, fused=fused),
    ]


def train_target(
    model: TargetModel,
    batches: Iterator[Shard],
    *,
    seconds: Callable[[], float] | None,
    steps: int | None,
    dtype: torch.dtype,
    compiled: bool,
    log: Callable[..., None],
    rate: float = 1.0,
) -> dict[str, Any]:
    """Train in place for `seconds` or `steps`, then round to bf16 what the file holds in bf16. Returns figures.

    `seconds` is asked when all is compiled, which takes an unknown part of the time that there is. `rate` multiplies
    the learning rates.
    """
    device = model.embed.device
    opts = optimizers(model)
    peaks = [[rate * group["lr"] for group in opt.param_groups] for opt in opts]
    run_block = torch.compile(block, dynamic=False) if compiled else block
    run_loss = torch.compile(token_loss, dynamic=False) if compiled else token_loss
    first = next(batches)
    rope = model.rope(first.ids.shape[1], device)

    def backward(shard: Shard, *, quantized: bool) -> tuple[Tensor, Tensor]:
        ids, codes, docs = device_batch(shard, device)
        weights = model.weights(dtype=dtype, quantized=quantized)
        states, balance = hidden_states(weights, model.config, ids, docs, rope, run_block)
        loss = run_loss(
            states[-1], weights.norm_H, weights.lm_head_VH, ids.roll(-1, 1), loss_weights(codes, docs),
            model.config.rms_norm_eps,
        )  # fmt: skip
        balance = balance / model.config.num_layers
        (loss + BALANCE_WEIGHT * balance).backward()
        return loss.detach(), balance.detach()

    try:
        backward(first, quantized=False)
        backward(first, quantized=True)
    except Exception as error:  # after any error of the compiler plain PyTorch still trains
        if not compiled:
            raise
        warnings.warn(f"torch.compile failed, going on without it: {error!r}"[:2000], stacklevel=2)
        run_block, run_loss, compiled = block, token_loss, False
    log(f"target: {sum(p.numel() for p in model.parameters()):,} parameters, compiled={compiled}")
    clock = Clock(seconds=None if seconds is None else seconds(), steps=steps)
    num_tokens = 0
    history: list[tuple[float, float]] = []
    while (fraction := clock.tick()) < 1:
        factor = cosine(fraction)
        for opt, lrs in zip(opts, peaks, strict=True):
            opt.zero_grad(set_to_none=True)
            for group, lr in zip(opt.param_groups, lrs, strict=True):
                group["lr"] = lr * factor
        shard = next(batches)
        loss, balance = backward(shard, quantized=fraction >= QUANTIZED_FROM)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
        num_tokens += shard.ids.size
        if clock.step % 8 == 0:
            value = loss.item()  # also keeps the host from running far ahead of the device
            history.append((fraction, value))
            if clock.step % 80 == 0:
                log(f"target step {clock.step} {fraction:.0%} loss {value:.4f} balance {balance.item():.3f}")
    model.bf16_rounded()
    tail = [loss for at, loss in history if at > 0.95] or [history[-1][1]]
    return {
        "target_steps": clock.step,
        "target_tokens": num_tokens,
        "train_loss": sum(tail) / len(tail),
        "compiled": compiled,
    }
