"""Plain batched generation with the trainable target: for on-policy samples and for the evaluation after training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
import torch.nn.functional as F
from target import KvCache, TargetModel, Weights, block, rms_norm
from torch import Tensor

__all__ = ["generate", "generate_all"]

# Of a batch in the pass over its prompts, where a GPU needs some 30 GB for as much.
MAX_TOKENS = 1 << 18
MAX_SCORES = 1 << 27  # rows times the square of their length


@torch.no_grad()
def generate_all(
    model: TargetModel,
    weights: Weights,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperatures: Sequence[float],
    stops: Collection[int],
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Continue any number of prompts, in batches of about equal length; the answers are in the prompts' order."""
    answers: list[list[int]] = [[]] * len(prompts)
    for batch in _batches([len(prompt) for prompt in prompts]):
        said = generate(
            model,
            weights,
            [prompts[i] for i in batch],
            max_tokens=max_tokens,
            temperatures=[temperatures[i] for i in batch],
            stops=stops,
            generator=generator,
        )
        for i, answer in zip(batch, said, strict=True):
            answers[i] = answer
    return answers


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens = (len(batch) + 1) * lengths[i]
        if batch and (tokens > MAX_TOKENS or tokens * lengths[i] > MAX_SCORES):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@torch.no_grad()
def generate(
    model: TargetModel,
    weights: Weights,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperatures: Sequence[float],
    stops: Collection[int],
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Continue prompts padded on the left to one length, up to one of `stops` or `max_tokens`.

    Each has its temperature, 0 for greedy; with all of them 0 the generator is not used.
    """
    config, device = model.config, model.embed.device
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), config.pad_id or 0)
    real = torch.zeros_like(ids, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        real[row, width - len(prompt) :] = True
    ids = ids.to(device)
    real = F.pad(real.to(device), (0, max_tokens), value=True)
    size = (len(prompts), width + max_tokens, config.num_kv_heads, config.head_dim)
    dtype = weights.lm_head_VH.dtype
    caches = [[torch.empty(size, dtype=dtype, device=device) for _ in range(2)] for _ in weights.layers]
    rope = model.rope(width + max_tokens, device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    heat_B = torch.tensor(temperatures, device=device)
    is_greedy_B, stop_ids = heat_B == 0, torch.tensor(sorted(stops), device=device)
    out: list[Tensor] = []
    chunk, at = ids, 0
    for _ in range(max_tokens):
        x = _advance(model, weights, chunk, at, real, caches, rope)
        logits = F.linear(rms_norm(x, weights.norm_H, config.rms_norm_eps).to(dtype), weights.lm_head_VH).float()
        token = logits.argmax(-1)
        if any(temperatures):
            p = (logits / torch.where(is_greedy_B, 1.0, heat_B)[:, None]).softmax(-1)
            token = torch.where(is_greedy_B, token, torch.multinomial(p, 1, generator=generator)[:, 0])
        out.append(token)
        done |= torch.isin(token, stop_ids)
        at += chunk.shape[1]
        chunk = token[:, None]
        if len(out) % 8 == 0 and bool(done.all()):
            break
    answers = torch.stack(out, 1).tolist()
    ends = [next((at + 1 for at, token in enumerate(row) if token in stops), len(row)) for row in answers]
    return [row[:end] for row, end in zip(answers, ends, strict=True)]


def _advance(
    model: TargetModel,
    weights: Weights,
    ids_BT: Tensor,
    at: int,
    real_BS: Tensor,
    caches: list[list[Tensor]],
    rope: tuple[Tensor, Tensor],
) -> Tensor:
    """Run `ids` from position `at`; the residual stream [B, H] of the last one."""
    config = model.config
    end = at + ids_BT.shape[1]
    query, key = torch.arange(at, end, device=ids_BT.device)[:, None], torch.arange(end, device=ids_BT.device)
    # A padding query sees itself alone, so that no softmax is empty.
    full = (query >= key) & (real_BS[:, None, :end] | (query == key))
    sliding = full & (query - key < config.sliding_window)
    x = F.embedding(ids_BT, weights.embed_VH)
    for is_sliding, layer, (k, v) in zip(config.layer_is_sliding, weights.layers, caches, strict=True):
        cache = KvCache(k, v, at)
        x, _ = block(x, sliding if is_sliding else full, rope[0][at:end], rope[1][at:end], layer, config, cache)
    return x[:, -1]
