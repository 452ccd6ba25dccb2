"""Bytes that decoding reads: weights, distinct experts, KV cache, draft head. No engine and no hardware in here.

A pass over n rows reads each expert once that any row chose. With independent uniform routing that is
U(n) = E (1 - (1 - k/E)^n) of E experts; real text repeats itself, so the other end of the range is U(n^0.75), which
is what measured unions of 8 to 32 rows suggest (lucebox #501; llama.cpp's sweep on a Spark).
"""

from __future__ import annotations

from math import pow

from msgspec import Struct

from eyas.recipes.records import Head, Model

__all__ = ["Load", "break_even", "distinct_experts", "kv_read_bytes", "pass_bytes", "round_bytes"]

CORRELATED = 0.75  # exponent of the rows that count


class Load(Struct, frozen=True, kw_only=True):
    """Load of a pass: `sequences`, each with `context` tokens in the cache.

    `uniform` is 1 for independent uniform routing, 0 for correlated rows, or between. The shares are the bytes of
    dense weights, experts, the head's weights and the KV cache against what the records say.
    """

    sequences: int = 1
    context: int = 1024
    uniform: float = 1.0
    dense_share: float = 1.0
    expert_share: float = 1.0
    draft_share: float = 1.0
    kv_share: float = 1.0


def distinct_experts(model: Model, rows: float, uniform: float = 1.0) -> float:
    """Return the experts of one layer that a pass over `rows` reads."""
    if not model.num_experts:
        return 0.0

    def union(independent: float) -> float:
        return model.num_experts * (1 - pow(1 - model.experts_per_token / model.num_experts, independent))

    return uniform * union(rows) + (1 - uniform) * union(pow(rows, CORRELATED))


def kv_read_bytes(model: Model, context: int) -> float:
    """Return the KV cache in bf16 that one row reads: all of it in full layers, the window in the others."""
    token = 2 * model.num_kv_heads * model.head_dim * 2
    full = model.num_layers - model.num_sliding_layers
    return token * (full * context + model.num_sliding_layers * min(context, model.window))


def pass_bytes(model: Model, rows: float, load: Load) -> float:
    """Return the bytes of weights and KV cache of one pass of the target over `rows` in all."""
    weights = (model.dense_bytes + model.head_bytes) * load.dense_share
    experts = distinct_experts(model, rows, load.uniform) * model.num_expert_layers * model.expert_bytes
    return weights + experts * load.expert_share + load.sequences * kv_read_bytes(model, load.context) * load.kv_share


def round_bytes(model: Model, head: Head | None, draft_tokens: int, load: Load) -> float:
    """Return the bytes of a round: the target over all drafts and one more row a sequence, and the head passes."""
    verify = pass_bytes(model, load.sequences * (draft_tokens + 1), load)
    return verify + (_draft_bytes(head, draft_tokens, load) if head is not None and draft_tokens else 0.0)


def break_even(model: Model, head: Head, draft_tokens: int, load: Load | None = None) -> float:
    """Return the acceptance length (bonus token included) at which a round reads what it saves, on bandwidth alone."""
    load = load or Load()
    return round_bytes(model, head, draft_tokens, load) / round_bytes(model, None, 0, load)


def _draft_bytes(head: Head, draft_tokens: int, load: Load) -> float:
    cache = load.sequences * load.context * head.kv_bytes_per_token
    return load.draft_share * (draft_tokens * head.step_bytes + head.fusion_bytes) + draft_tokens * cache
