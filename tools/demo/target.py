"""A gpt-oss model that can be trained: all layers of one kind of weight are stacked, every expert sees every token.

Computing all experts and weighting the unpicked ones by zero is exact, and for experts this small faster than sorting
tokens. Attention is dense, with masks for document, causality and window. Formulas: openai/gpt-oss,
gpt_oss/torch/model.py.

Shape letters: B rows, T tokens of a row, S keys, L layers, H hidden, Q query heads, G key/value heads, D head
dimension, E experts, I intermediate, V vocabulary.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.model.config import GptOssConfig
from eyas.model.mxfp4 import fake_quantize
from eyas.model.networks.rope import rope_table

__all__ = ["Masks", "TargetModel", "Weights", "block", "masks_of", "token_loss"]

SWIGLU_ALPHA = 1.702


class LayerTensors(NamedTuple):
    """Tensors of a block: matrices in the compute dtype, the rest fp32."""

    input_norm_H: Tensor
    q_NH: Tensor
    k_NH: Tensor
    v_NH: Tensor
    qkv_bias_N: Tensor
    sinks_Q: Tensor
    o_HN: Tensor
    o_bias_H: Tensor
    post_norm_H: Tensor
    router_EH: Tensor
    router_bias_E: Tensor
    gate_up_ENH: Tensor  # N = 2 I, gate and up rows alternate
    gate_up_bias_EN: Tensor
    down_EHI: Tensor
    down_bias_EH: Tensor


class Weights(NamedTuple):
    """One step's view of the parameters, experts quantised if asked."""

    embed_VH: Tensor
    layers: tuple[LayerTensors, ...]
    norm_H: Tensor
    lm_head_VH: Tensor


class Masks(NamedTuple):
    """Masks of the keys that a query sees: bool [B, T, S], or by blocks of as many queries as the window has keys.

    Those of blocks are [B, C, W, 2 W]: block c sees its own keys and those of block c - 1.
    """

    full: Tensor
    sliding: Tensor


def masks_of(docs_BT: Tensor, window: int) -> Masks:
    """Make masks, causal within a document; the window counts the query itself.

    The sliding one goes by blocks where a row is a whole number of windows, which saves most of its attention.
    """
    length, device = docs_BT.shape[1], docs_BT.device
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    full = (docs_BT[:, :, None] == docs_BT[:, None, :]) & (distance >= 0)
    if length % window or length < 2 * window:
        return Masks(full, full & (distance < window))
    docs_BCW = docs_BT.unflatten(1, (-1, window))
    keys_BCS = _with_block_before(docs_BCW, fill=-2)  # no document has this number
    query, key = torch.arange(window, device=device)[:, None] + window, torch.arange(2 * window, device=device)
    near = (query >= key) & (query - key < window)
    return Masks(full, (docs_BCW[..., None] == keys_BCS[:, :, None]) & near)


def _with_block_before(x_BCW: Tensor, *, fill: float = 0) -> Tensor:
    """Put the block before in front of each block: [B, C, 2 W, ...]."""
    before = torch.cat((torch.full_like(x_BCW[:, :1], fill), x_BCW[:, :-1]), 1)
    return torch.cat((before, x_BCW), 2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x_BTND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    a, b = x_BTND.float().chunk(2, dim=-1)
    cos, sin = cos_TD[:, None], sin_TD[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x_BTND.dtype)


def attend(q_BTQD: Tensor, k_BSGD: Tensor, v_BSGD: Tensor, mask_BTS: Tensor, sinks_Q: Tensor) -> Tensor:
    """[B, T, Q * D]; the sink is one more logit of the softmax, with no value."""
    if mask_BTS.dim() == 4:  # by blocks, each of which becomes a row
        b, c, w = mask_BTS.shape[:3]
        q, k, v = (x.unflatten(1, (c, w)) for x in (q_BTQD, k_BSGD, v_BSGD))
        k, v = _with_block_before(k), _with_block_before(v)
        out = attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), mask_BTS.flatten(0, 1), sinks_Q)
        return out.view(b, c * w, -1)
    b, t, q, d = q_BTQD.shape
    s, g = k_BSGD.shape[1:3]
    grouped = q_BTQD.view(b, t, g, q // g, d).permute(0, 2, 3, 1, 4).reshape(b, g, q // g * t, d)
    scores = (grouped @ k_BSGD.permute(0, 2, 3, 1)).view(b, g, q // g, t, s).float() / sqrt(d)
    scores = scores.masked_fill(~mask_BTS[:, None, None], -torch.inf)
    total = torch.logaddexp(torch.logsumexp(scores, -1), sinks_Q.view(g, q // g, 1))
    p = (scores - total[..., None]).exp().to(v_BSGD.dtype).view(b, g, q // g * t, s)
    out = (p @ v_BSGD.transpose(1, 2)).view(b, g, q // g, t, d)
    return out.permute(0, 3, 1, 2, 4).reshape(b, t, q * d)


def mixture(x_BTH: Tensor, w: LayerTensors, top_k: int, limit: float) -> tuple[Tensor, Tensor]:
    """(output [B, T, H], load-balancing loss): top-k of the raw router logits, softmax over those k.

    The loss is E sum_e f_e P_e (Fedus et al., Switch Transformer, 2021): 1 where experts are used evenly.
    """
    dtype = w.down_EHI.dtype
    num_experts, hidden, inter = w.down_EHI.shape
    logits = F.linear(x_BTH, w.router_EH.float(), w.router_bias_E)
    top, ids = logits.topk(top_k, dim=-1)
    weights_BTE = torch.zeros_like(logits).scatter(-1, ids, top.softmax(-1))
    used = (weights_BTE > 0).float().mean((0, 1)) / top_k
    balance = num_experts * (used.detach() * logits.softmax(-1).mean((0, 1))).sum()

    gate_up = F.linear(x_BTH.to(dtype), w.gate_up_ENH.flatten(0, 1)).float() + w.gate_up_bias_EN.flatten()
    gate, up = gate_up.unflatten(-1, (num_experts, inter, 2)).unbind(-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    act = gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1) * weights_BTE[..., None]
    down = w.down_EHI.transpose(0, 1).reshape(hidden, num_experts * inter)
    out = F.linear(act.flatten(-2).to(dtype), down).float() + weights_BTE @ w.down_bias_EH
    return out, balance


class KvCache(NamedTuple):
    """Keys and values of one layer [B, S, G, D], written in place at `at`, for decoding."""

    k: Tensor
    v: Tensor
    at: int

    def extend(self, k_BTGD: Tensor, v_BTGD: Tensor) -> tuple[Tensor, Tensor]:
        end = self.at + k_BTGD.shape[1]
        self.k[:, self.at : end], self.v[:, self.at : end] = k_BTGD, v_BTGD
        return self.k[:, :end], self.v[:, :end]


def block(
    x_BTH: Tensor,
    mask_BTS: Tensor,
    cos_TD: Tensor,
    sin_TD: Tensor,
    w: LayerTensors,
    config: GptOssConfig,
    cache: KvCache | None = None,
) -> tuple[Tensor, Tensor]:
    """One layer over the fp32 residual stream: (residual [B, T, H], load-balancing loss)."""
    dtype, eps, d = w.q_NH.dtype, config.rms_norm_eps, config.head_dim
    normed = rms_norm(x_BTH, w.input_norm_H, eps).to(dtype)
    qkv = F.linear(normed, torch.cat((w.q_NH, w.k_NH, w.v_NH)), w.qkv_bias_N.to(dtype)).unflatten(-1, (-1, d))
    q, k, v = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=2)
    q, k = rotate(q, cos_TD, sin_TD), rotate(k, cos_TD, sin_TD)
    if cache is not None:
        k, v = cache.extend(k, v)
    attn = attend(q, k, v, mask_BTS, w.sinks_Q)
    x_BTH = x_BTH + F.linear(attn, w.o_HN).float() + w.o_bias_H
    out, balance = mixture(rms_norm(x_BTH, w.post_norm_H, eps), w, config.experts_per_token, config.swiglu_limit)
    return x_BTH + out, balance


def token_loss(
    x_BTH: Tensor, norm_H: Tensor, lm_head_VH: Tensor, targets_BT: Tensor, weight_BT: Tensor, eps: float
) -> Tensor:
    """Cross entropy, averaged with the given weights."""
    logits = F.linear(rms_norm(x_BTH, norm_H, eps).to(lm_head_VH.dtype), lm_head_VH).float()
    losses = F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten(), reduction="none")
    return (losses * weight_BT.flatten()).sum() / weight_BT.sum().clamp(min=1.0)


class TargetModel(nn.Module):
    """fp32 master weights, and the forward pass over a `Weights` view of them."""

    def __init__(self, config: GptOssConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        v, h, n, e, i = (
            config.vocab_size,
            config.hidden_size,
            config.num_layers,
            config.num_experts,
            config.intermediate_size,
        )
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def normal(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) * std)

        def constant(value: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.full(shape, value))

        self.embed = normal(v, h, std=0.5)
        self.lm_head = normal(v, h, std=0.5 / h**0.5)
        self.norm = constant(1.0, h)
        self.input_norm, self.post_norm = constant(1.0, n, h), constant(1.0, n, h)
        self.q, self.k = normal(n, query, h, std=h**-0.5), normal(n, key, h, std=h**-0.5)
        self.v, self.o = normal(n, key, h, std=h**-0.5), normal(n, h, query, std=0.1 * query**-0.5)
        self.qkv_bias, self.o_bias = constant(0.0, n, query + 2 * key), constant(0.0, n, h)
        self.sinks = constant(0.0, n, config.num_heads)
        self.router, self.router_bias = normal(n, e, h, std=h**-0.5), constant(0.0, n, e)
        self.gate_up, self.gate_up_bias = normal(n, e, 2 * i, h, std=h**-0.5), constant(0.0, n, e, 2 * i)
        self.down, self.down_bias = normal(n, e, h, i, std=0.1 * i**-0.5), constant(0.0, n, e, h)

    def weights(self, *, dtype: torch.dtype, quantized: bool) -> Weights:
        """Matrices cast to `dtype`; expert matrices through MXFP4, straight-through, if `quantized`."""
        gate_up, down = self.gate_up, self.down
        if quantized:
            gate_up, down = fake_quantize(gate_up), fake_quantize(down)
        stacks = (
            self.input_norm, self.q.to(dtype), self.k.to(dtype), self.v.to(dtype), self.qkv_bias, self.sinks,
            self.o.to(dtype), self.o_bias, self.post_norm, self.router, self.router_bias,
            gate_up.to(dtype), self.gate_up_bias, down.to(dtype), self.down_bias,
        )  # fmt: skip
        layers = tuple(LayerTensors(*parts) for parts in zip(*(stack.unbind(0) for stack in stacks), strict=True))
        return Weights(self.embed, layers, self.norm, self.lm_head.to(dtype))

    def rope(self, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
        table = rope_table(self.config.rope, self.config.head_dim, positions, device)
        return table.cos, table.sin

    def bf16_rounded(self) -> None:
        """Round everything to what the file will hold; expert matrices are left to the quantiser."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name not in ("gate_up", "down"):
                    parameter.copy_(parameter.bfloat16().float())


def hidden_states(
    w: Weights,
    config: GptOssConfig,
    ids_BT: Tensor,
    docs_BT: Tensor,
    rope: tuple[Tensor, Tensor],
    run_block=block,  # noqa: ANN001
) -> tuple[list[Tensor], Tensor]:
    """([HS[0], ..., HS[L]], summed load-balancing loss): the residual stream at every layer boundary, fp32."""
    masks = masks_of(docs_BT, config.sliding_window)
    cos, sin = rope[0][: ids_BT.shape[1]], rope[1][: ids_BT.shape[1]]
    states = [F.embedding(ids_BT, w.embed_VH)]
    balance = torch.zeros((), device=ids_BT.device)
    for sliding, layer in zip(config.layer_is_sliding, w.layers, strict=True):
        x, extra = run_block(states[-1], masks.sliding if sliding else masks.full, cos, sin, layer, config)
        states.append(x)
        balance = balance + extra
    return states, balance
