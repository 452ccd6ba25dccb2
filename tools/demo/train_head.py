"""Phase two: the EAGLE-3 head on the frozen, quantised target, partly on answers that the target sampled itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from data import CONTEXT, GENERATED, IGNORED, TEXT, Shard
from optim import Clock, Muon, cosine
from target import TargetModel, Weights, hidden_states, rms_norm
from torch import Tensor
from train_target import device_batch

from eyas.model.checkpoints.head_options import draft_vocabulary
from eyas.model.config import Eagle3Config
from eyas.train.reference import ReferenceHead, TttBatch, training_time_test

__all__ = ["new_head", "observe", "pack", "train_head"]

MUON_LR, ADAM_LR = 0.01, 2e-3
OWN_SAMPLES_EVERY = 3  # every third batch holds what the target sampled


def pack(pieces: list[tuple[list[int], list[int]]], length: int, pad: int) -> Shard:
    """Rows of `length` tokens from (ids, codes) documents, first fit; the rest of a row is ignored padding."""
    rows: list[list[tuple[list[int], list[int]]]] = []
    room: list[int] = []
    for piece in pieces:
        size = len(piece[0])
        if size > length:
            continue
        place = next((i for i in range(max(0, len(rows) - 20), len(rows)) if room[i] >= size), None)
        if place is None:
            rows.append([])
            room.append(length)
            place = -1
        rows[place].append(piece)
        room[place] -= size
    ids = np.full((len(rows), length), pad, np.uint16)
    codes, docs = np.full_like(ids, IGNORED, np.uint8), np.zeros_like(ids)
    for i, row in enumerate(rows):
        at = 0
        for number, (piece, code) in enumerate(row):
            end = at + len(piece)
            ids[i, at:end], codes[i, at:end], docs[i, at:end] = piece, code, number
            at = end
        docs[i, at:] = len(row)
    return Shard(ids, codes, docs)


def with_prompt(prompt: list[int], answer: list[int]) -> tuple[list[int], list[int]]:
    return prompt + answer, [CONTEXT] * len(prompt) + [GENERATED] * len(answer)


@torch.no_grad()
def observe(
    model: TargetModel, weights: Weights, taps: tuple[int, ...], shard: Shard, rope: tuple[Tensor, Tensor]
) -> TttBatch:
    """The frozen target's view of a batch."""
    ids, codes, docs = device_batch(shard, model.embed.device)
    states, _ = hidden_states(weights, model.config, ids, docs, rope)
    last = rms_norm(states[-1], weights.norm_H, model.config.rms_norm_eps).to(weights.lm_head_VH.dtype)
    return TttBatch(
        tokens_BT=ids,
        taps_BTC=torch.cat([states[tap] for tap in taps], dim=-1),
        embedded_BTH=F.embedding(ids, weights.embed_VH),
        target_logits_BTV=F.linear(last, weights.lm_head_VH).float(),
        generated_BT=(codes == GENERATED) | (codes == TEXT),
        documents_BT=docs,
    )


def new_head(config: Eagle3Config, model: TargetModel, samples: list[Shard], always: tuple[int, ...]) -> ReferenceHead:
    """A head whose draft vocabulary is the most generated ids of `samples`, its output matrix the target's rows."""
    counts = torch.zeros(config.vocab_size, dtype=torch.float64)
    for shard in samples:
        for code, weight in ((GENERATED, 1.0), (TEXT, 0.1)):
            chosen = torch.from_numpy(shard.ids[shard.codes == code].astype("int64"))
            counts += weight * torch.bincount(chosen, minlength=config.vocab_size)
    head = ReferenceHead(config, draft_vocabulary(counts, config.draft_vocab_size, always))
    with torch.no_grad():
        head.lm_head.weight.copy_(model.lm_head[head.target_ids_V.to(model.lm_head.device)])
    return head.to(model.embed.device)


def train_head(
    head: ReferenceHead,
    model: TargetModel,
    weights: Weights,
    batches: Iterator[Shard],
    own_samples: Shard,
    *,
    seconds: float | None,
    steps: int | None,
    num_ttt_steps: int,
    log: Callable[..., None],
) -> dict[str, Any]:
    """Train in place for `seconds` or `steps`; matrices are rounded to bf16 at the end. Returns figures."""
    device = model.embed.device
    matrices = [p for name, p in head.named_parameters() if p.ndim == 2 and not name.startswith("lm_head")]
    rest = [p for name, p in head.named_parameters() if p.ndim != 2 or name.startswith("lm_head")]
    opts = [
        Muon(matrices, lr=MUON_LR),
        torch.optim.AdamW(rest, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    peaks = [[group["lr"] for group in opt.param_groups] for opt in opts]
    clock = Clock(seconds=seconds, steps=steps)
    first = next(batches)
    num_rows, length = first.ids.shape
    rope = model.rope(length, device)
    rng = np.random.default_rng(0)
    num_tokens = 0
    values: list[float] = []
    while (fraction := clock.tick()) < 1:
        factor = cosine(fraction)
        for opt, lrs in zip(opts, peaks, strict=True):
            opt.zero_grad(set_to_none=True)
            for group, lr in zip(opt.param_groups, lrs, strict=True):
                group["lr"] = lr * factor
        if clock.step % OWN_SAMPLES_EVERY == 0:
            chosen = rng.choice(len(own_samples.ids), num_rows)
            shard = Shard(*(part[chosen] for part in own_samples))
        else:
            shard = next(batches)
        batch = observe(model, weights, head.config.taps, shard, rope)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            result = training_time_test(head, batch, num_steps=num_ttt_steps)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for opt in opts:
            opt.step()
        num_tokens += shard.ids.size
        if clock.step % 8 == 0:
            values.append(result.loss.item())
            if clock.step % 100 == 0:
                rates = [
                    f"{(h & c).sum() / c.sum().clamp(min=1):.3f}"
                    for h, c in zip(result.hits_JBT, result.counted_JBT, strict=True)
                ]
                log(f"head step {clock.step} {fraction:.0%} loss {values[-1]:.4f} hits by depth {' '.join(rates)}")
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return {"head_steps": clock.step, "head_tokens": num_tokens, "head_loss": values[-1]}
