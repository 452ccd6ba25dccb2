"""Samples tokens from logits: temperature, top-k, top-p, min-p and position-keyed noise.

The token at position t is argmax_v(score_t[v] + g(seed, choice, t, v)) with Gumbel noise g, a draw from softmax(score)
that depends on the prefix and the seed alone (Daliri, Musco, Suresh: "Coupling without communication and
drafter-invariant speculative decoding", 2024). Temperature 0 is the plain argmax.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from eyas.kernels.reference.rounds.noise import gumbel

__all__ = ["SamplingRows", "filter_scores", "sample"]


class SamplingRows(NamedTuple):
    """Settings per row, all [T]; the two flags are known to the host and skip work that no row needs."""

    temperature: Tensor  # fp32, 0 is greedy
    top_k: Tensor  # int64, 0 is off
    top_p: Tensor  # fp32, 1 is off
    min_p: Tensor  # fp32, 0 is off
    seed: Tensor  # int64
    choice: Tensor  # int64
    any_random: bool
    any_filter: bool

    def take(self, rows: Tensor) -> SamplingRows:
        """The settings of some rows."""
        taken: dict[str, Any] = {
            name: value[rows] for name, value in self._asdict().items() if isinstance(value, Tensor)
        }
        return self._replace(**taken)


def filter_scores(scores_TV: Tensor, top_k_T: Tensor, top_p_T: Tensor, min_p_T: Tensor) -> Tensor:
    """Scores with -inf where top-k, then top-p, then min-p drop a token (Hugging Face's order)."""
    vocab_size = scores_TV.shape[1]
    ranked, order = scores_TV.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=scores_TV.device)
    last = torch.where(top_k_T > 0, top_k_T.clamp(max=vocab_size), vocab_size) - 1
    kth = ranked.gather(1, last.unsqueeze(1))
    ranked = ranked.masked_fill(ranked < kth, float("-inf"))  # ties with the k-th stay
    probs = ranked.softmax(-1)
    before = probs.cumsum(-1) - probs
    dropped = (before >= top_p_T.unsqueeze(1)) & (top_p_T < 1).unsqueeze(1) & (rank > 0)
    ranked = ranked.masked_fill(dropped, float("-inf"))
    # p / p_max is the same before and after the tokens dropped so far are renormalised away.
    ranked = ranked.masked_fill(probs < min_p_T.unsqueeze(1) * probs[:, :1], float("-inf"))
    return torch.empty_like(scores_TV).scatter_(1, order, ranked)


def sample(logits_TV: Tensor, position_T: Tensor, rows: SamplingRows, *, target_ids_V: Tensor | None = None) -> Tensor:
    """Indices int64 [T] of the tokens that stand at `position_T`.

    `target_ids_V` names the target id of each column of a draft vocabulary, so that drafter and target share the noise.
    """
    if not rows.any_random:
        return logits_TV.argmax(-1)
    greedy_T1 = (rows.temperature == 0).unsqueeze(1)
    scores = logits_TV / torch.where(greedy_T1, 1.0, rows.temperature.unsqueeze(1))
    if rows.any_filter:
        scores = filter_scores(scores, rows.top_k, rows.top_p, rows.min_p)
    noise = gumbel(rows.seed, rows.choice, position_T, vocab_size=logits_TV.shape[1], ids_V=target_ids_V)
    return torch.where(greedy_T1, logits_TV, scores + noise).argmax(-1)
