"""Logits behind 32,768 tokens with keys and values in 8 bits: their error beside that of 16 bits."""

from dataclasses import replace

import pytest
import torch
from tests.model.networks.test_gpu_logits import as_fp32
from tests.model.support.poisoned import TILE, draw_target, packed, paged, poison_token

from eyas.engine.drafters.base import Drafter, DrafterNeeds
from eyas.engine.startup.backend import KERNEL_CHUNK, kernel_backend
from eyas.kernels.reference.layers.plain_ops import PlainOps
from eyas.model.making.presets import PRESETS
from eyas.model.networks.gpt_oss import GptOss

pytestmark = pytest.mark.gpu

NUM_LAYERS = 12
CONFIG = replace(PRESETS["gpt-oss-120b"], num_layers=NUM_LAYERS, layer_is_sliding=(True, False) * (NUM_LAYERS // 2))
LENGTH, NUM_DECODED, ROWS = 32_768, 128, 4
PLAIN_CHUNK = 2048  # rows at once of the plain operations
BAR = 2.0


def in_fp32(weights, tokens_N):
    """Logits of the last tokens by the plain operations."""
    ops, length = PlainOps(dense=TILE, experts=None), len(tokens_N)
    cache = paged(GptOss(weights=weights, config=CONFIG, max_positions=length), [length])
    for start in range(0, length, PLAIN_CHUNK):
        output, live = cache.prompt(0, tokens_N, start, min(start + PLAIN_CHUNK, length), ops)
    return cache.target.logits(output.normed.take(slice(live.stop - NUM_DECODED, live.stop)), ops)


def by_kernels(target, tokens_N, prompt_ops, row_ops, *, in_fp8):
    """Logits of the last tokens by decode rows behind a prompt."""
    length, device = len(tokens_N), tokens_N.device
    cache = paged(target, [length], in_fp8=in_fp8)
    for start in range(0, length - NUM_DECODED, KERNEL_CHUNK):
        cache.prompt(0, tokens_N, start, min(start + KERNEL_CHUNK, length - NUM_DECODED), prompt_ops)
    logits = []
    for start in range(length - NUM_DECODED, length, ROWS):
        tokens_SR = tokens_N[start : start + ROWS].unsqueeze(0)
        live_SR = torch.ones_like(tokens_SR, dtype=torch.bool)
        batch = cache.rows([0], tokens_SR, torch.tensor([start], device=device), live_SR, length, row_ops)
        logits.append(target.logits(target.forward(batch, cache.caches).normed, row_ops))
    return torch.cat(logits)


@torch.inference_mode()
def test_8_bits_at_most_double_the_error():
    device = torch.device("cuda")
    weights = draw_target(CONFIG, device)
    generator = torch.Generator(device).manual_seed(1)
    tokens_N = torch.randint(poison_token(CONFIG), (LENGTH,), generator=generator, device=device)
    right = in_fp32(as_fp32(weights), tokens_N)
    target = GptOss(CONFIG, packed(weights), max_positions=LENGTH + TILE)
    sizes = {"concurrency": 1, "max_drafts": ROWS - 1}
    backend = kernel_backend(CONFIG, Drafter, DrafterNeeds(), device, chunk_tokens=KERNEL_CHUNK, **sizes)
    errors = {}
    for in_fp8 in (False, True):
        ours = by_kernels(target, tokens_N, backend.prompt_ops, backend.row_ops, in_fp8=in_fp8)
        errors[in_fp8] = ((ours - right).square().mean() / right.square().mean()).sqrt().item()
        same = (ours.argmax(-1) == right.argmax(-1)).float().mean().item()
        name = "8 bits" if in_fp8 else "16 bits"
        print(f"\n{name}: error {errors[in_fp8]:.4f} of the logits, {same:.1%} of the likeliest tokens", end="")
    print(f"\nratio {errors[True] / errors[False]:.3f}")
    assert errors[True] <= BAR * errors[False]
