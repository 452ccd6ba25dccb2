"""The EAGLE-3 training-time test as plainly as it can be written: the oracle of any faster trainer, and slow.

A head is trained by letting it draft as it will in service. Row t of step 0 pairs the target's hidden state a_t with the
embedding of x_{t+1} and predicts x_{t+2}; row t of step j pairs the head's own output of step j - 1 with x_{t+1+j} and
predicts x_{t+2+j}, at rotary position t + j. A query of step j sees the keys of step 0 up to its row, causally, and of
the later steps only those of its own row, since a draft starts afresh from every row:

    softmax([q_j . k_0[0..t] | q_j . k_1[t] | ... | q_j . k_j[t]])

Loss: sum_j decay^j mean_t(-sum_v p(v) log q_j(v)), with p the target's distribution for the predicted token, restricted to
the draft vocabulary and renormalised, over rows whose predicted token the model generated and whose most likely token
lies in the draft vocabulary. The mean is over those rows, not over all.

Sources: Li et al., "EAGLE-3: Scaling up inference acceleration of large language models via training-time test", 2025;
SafeAILab/EAGLE (eagle/traineagle3/cnets.py) and sgl-project/SpecForge, whose mean is over all rows.

Shape letters: B rows of a batch, T tokens, S keys, H hidden, C = len(taps) Ht, Q and G heads, D head dimension, V target
and Vd draft vocabulary, J steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.model.config import HeadConfig
from eyas.model.rope import rope_table

__all__ = ["ReferenceHead", "TttBatch", "TttResult", "draft_vocabulary", "training_time_test"]

NUM_STEPS = 7
DECAY = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class TttBatch:
    """What the frozen target says about packed rows of tokens. Documents of a row are numbered, and do not see each other."""

    tokens_BT: Tensor  # int64, x_t
    taps_BTC: Tensor  # a_t: the tapped hidden states side by side
    embedded_BTH: Tensor  # the target's embedding of x_t
    target_logits_BTV: Tensor  # at t, for x_{t+1}
    generated_BT: Tensor  # bool: x_t was written by the model
    documents_BT: Tensor  # int64


@dataclass(frozen=True, kw_only=True, slots=True)
class TttResult:
    """Per step j and row t, about the prediction of x_{t+2+j}. `hits` and `overlap` count misses where it is not in Vd."""

    loss: Tensor
    losses_J: Tensor
    counted_JBT: Tensor  # bool: x_{t+2+j} is in the row's document and was generated
    hits_JBT: Tensor  # bool: the most likely draft token is the target's most likely token
    overlap_JBT: Tensor  # sum_v min(p(v), q(v)), full vocabulary: acceptance of rejection sampling at temperature 1
    coupled_JBT: Tensor | None  # bool: both pick the same token under the same Gumbel noise, if a generator was given


def _wide(x: Tensor) -> Tensor:
    """At least fp32, for norms and softmax."""
    return x if x.dtype == torch.float64 else x.float()


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = _wide(x)
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    """`midlayer` of the checkpoints: attention over [embedding, hidden], then a SwiGLU MLP."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.hidden_norm = RmsNorm(hidden, eps)
        self.input_layernorm = RmsNorm(hidden, eps)
        self.post_attention_layernorm = RmsNorm(hidden, eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": linear(2 * hidden, query),
                "k_proj": linear(2 * hidden, key),
                "v_proj": linear(2 * hidden, key),
                "o_proj": linear(query, hidden),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": linear(hidden, config.intermediate_size),
                "up_proj": linear(hidden, config.intermediate_size),
                "down_proj": linear(config.intermediate_size, hidden),
            }
        )


class ReferenceHead(nn.Module):
    """The trainable part of a head, with the names that its checkpoint has. The embedding is the target's, frozen."""

    def __init__(self, config: HeadConfig, target_ids_V: Tensor) -> None:
        """`target_ids_V` int64 [Vd]: the target id of every draft id, ascending."""
        super().__init__()
        self.config = config
        width = len(config.taps) * config.target_hidden_size
        if config.has_fc:
            self.fc = nn.Linear(width, config.hidden_size, bias=False)
        if config.norm_before_fc:
            self.input_norm = RmsNorm(width, config.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RmsNorm(config.target_hidden_size, config.rms_norm_eps) for _ in config.taps)
        self.midlayer = Layer(config)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.target_ids_V: Tensor
        self.register_buffer("target_ids_V", target_ids_V, persistent=False)

    def fuse(self, taps_BTC: Tensor) -> Tensor:
        """Tapped states as one hidden state [B, T, H]; of step 0 only."""
        if not self.config.has_fc:
            return taps_BTC
        if self.config.fc_norm:
            parts = taps_BTC.chunk(len(self.config.taps), dim=-1)
            taps_BTC = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        if self.config.norm_before_fc:
            taps_BTC = self.input_norm(taps_BTC)
        fused: Tensor = self.fc(taps_BTC)
        return fused

    def step(
        self, hidden_BTH: Tensor, embedded_BTH: Tensor, earlier: Steps, mask_BTS: Tensor, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """One step for all rows: the un-normed output [B, T, H]. Appends its keys and values to `earlier`."""
        config, layer = self.config, self.midlayer
        normed = layer.hidden_norm(hidden_BTH)
        both = torch.cat((layer.input_layernorm(embedded_BTH), normed), dim=-1)
        q, k, v = (
            layer.self_attn[name](both).unflatten(-1, (-1, config.head_dim)) for name in ("q_proj", "k_proj", "v_proj")
        )
        earlier.keys.append(_rotate(k, *rope))
        earlier.values.append(v)
        attn = layer.self_attn["o_proj"](_attend(_rotate(q, *rope), earlier, mask_BTS))
        residual = (normed if config.norm_before_residual else hidden_BTH) + attn
        inner = layer.post_attention_layernorm(residual)
        mlp = layer.mlp["down_proj"](F.silu(layer.mlp["gate_proj"](inner)) * layer.mlp["up_proj"](inner))
        out: Tensor = residual + mlp
        return out

    def recur(self, hidden_BTH: Tensor) -> Tensor:
        """What the next step takes for its hidden state."""
        return self.norm(hidden_BTH) if self.config.norm_output else hidden_BTH

    def logits(self, hidden_BTH: Tensor) -> Tensor:
        """[B, T, Vd]"""
        logits: Tensor = self.lm_head(self.norm(hidden_BTH))
        return logits


@dataclass(frozen=True, slots=True)
class Steps:
    """Keys and values [B, T, G, D] of step 0, 1, ..."""

    keys: list[Tensor]
    values: list[Tensor]


def _rotate(x_BTND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    a, b = x_BTND.chunk(2, dim=-1)
    cos, sin = cos_TD[:, None], sin_TD[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _attend(q_BTQD: Tensor, steps: Steps, mask_BTS: Tensor) -> Tensor:
    """[B, T, Q * D]: causal over step 0, own row of the later steps, one softmax over both."""
    b, t, heads, d = q_BTQD.shape
    groups = steps.keys[0].shape[2]
    q = q_BTQD.unflatten(2, (groups, heads // groups))
    scores = torch.einsum("btgrd,bsgd->bgrts", q, steps.keys[0]) / sqrt(d)
    scores = scores.masked_fill(~mask_BTS[:, None, None], -torch.inf)
    own = [torch.einsum("btgrd,btgd->bgrt", q, k)[..., None] / sqrt(d) for k in steps.keys[1:]]
    p = torch.cat((scores, *own), dim=-1).softmax(-1)
    out = torch.einsum("bgrts,bsgd->btgrd", p[..., :t], steps.values[0])
    for j, v in enumerate(steps.values[1:]):
        out = out + torch.einsum("bgrt,btgd->btgrd", p[..., t + j], v)
    return out.reshape(b, t, heads * d)


def _shift(x_BT: Tensor, by: int) -> Tensor:
    """x[:, t + by] at t, zeros at the end."""
    return torch.cat((x_BT[:, by:], torch.zeros_like(x_BT[:, :by])), dim=1)


def training_time_test(
    head: ReferenceHead,
    batch: TttBatch,
    *,
    num_steps: int = NUM_STEPS,
    decay: float = DECAY,
    noise: torch.Generator | None = None,
) -> TttResult:
    """Run the steps and return loss and acceptance statistics; `noise` turns on `coupled_JBT`."""
    num_tokens = batch.tokens_BT.shape[1]
    device = batch.tokens_BT.device
    cos, sin = rope_table(head.config.rope, head.config.head_dim, num_tokens + num_steps, device)
    if batch.taps_BTC.dtype == torch.float64:
        cos, sin = cos.double(), sin.double()
    at = torch.arange(num_tokens, device=device)
    documents = batch.documents_BT
    mask_BTS = (documents[:, :, None] == documents[:, None, :]) & (at[:, None] >= at[None, :])
    in_draft_V = torch.zeros(head.config.vocab_size, dtype=torch.bool, device=device)
    in_draft_V[head.target_ids_V] = True

    hidden = head.fuse(batch.taps_BTC)
    steps = Steps([], [])
    losses, counted, hits, overlaps, coupled = [], [], [], [], []
    for j in range(num_steps):
        embedded = _shift(batch.embedded_BTH, 1 + j)
        hidden = head.step(hidden, embedded, steps, mask_BTS, (cos[j : j + num_tokens], sin[j : j + num_tokens]))
        logits = head.logits(hidden)
        hidden = head.recur(hidden)

        predicted = 2 + j  # row t predicts x_{t+2+j}, for which the target spoke at t+1+j
        target_logits = _shift(batch.target_logits_BTV, predicted - 1)
        inside = (at + predicted < num_tokens) & (_shift(documents, predicted) == documents)
        count = inside & _shift(batch.generated_BT, predicted)
        best = target_logits.argmax(-1)
        trained = count & in_draft_V[best]
        p_target = _wide(target_logits[..., head.target_ids_V]).softmax(-1)
        loss_BT = -(p_target * _wide(logits).log_softmax(-1)).sum(-1)
        losses.append((loss_BT * trained).sum() / trained.sum().clamp(min=1))
        counted.append(count)
        with torch.no_grad():
            hits.append(head.target_ids_V[logits.argmax(-1)] == best)
            full = _wide(target_logits).softmax(-1)[..., head.target_ids_V]
            overlaps.append(torch.minimum(full, _wide(logits).softmax(-1)).sum(-1))
            if noise is not None:
                coupled.append(_same_pick(logits, target_logits, head.target_ids_V, noise))
    losses_J = torch.stack(losses)
    weights_J = decay ** torch.arange(num_steps, device=device, dtype=losses_J.dtype)
    return TttResult(
        loss=(losses_J * weights_J).sum(),
        losses_J=losses_J.detach(),
        counted_JBT=torch.stack(counted),
        hits_JBT=torch.stack(hits),
        overlap_JBT=torch.stack(overlaps),
        coupled_JBT=torch.stack(coupled) if coupled else None,
    )


def _same_pick(logits: Tensor, target_logits: Tensor, target_ids_V: Tensor, noise: torch.Generator) -> Tensor:
    """Whether draft and target sample the same token under shared Gumbel noise (Daliri, Musco, Suresh, 2024)."""
    uniform = torch.rand(target_logits.shape, generator=noise, device=target_logits.device)
    gumbel = -(-uniform.clamp(min=1e-20).log()).clamp(min=1e-20).log()
    target_pick = (target_logits.float() + gumbel).argmax(-1)
    draft_pick = (logits.float() + gumbel[..., target_ids_V]).argmax(-1)
    return target_ids_V[draft_pick] == target_pick


def draft_vocabulary(counts_V: Tensor, size: int, always: tuple[int, ...] = ()) -> Tensor:
    """int64 [size], ascending: `always`, then the most frequent ids, lower ids first where counts are equal."""
    counts = counts_V.clone()
    counts[list(always)] = counts.max() + 1
    return counts.argsort(descending=True, stable=True)[:size].sort().values
