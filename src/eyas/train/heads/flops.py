"""Floating-point operations of a step of an EAGLE-3 head, by part and from shapes alone.

A product of [n, k] and [k, m] has 2 n k m. A weight takes part in one forward and two backward products, fc in one, as
the taps have no gradient. Attention has two products forward, and five backward by the formula that keeps no scores.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.model.config import Eagle3Config

__all__ = ["Work", "head_flops"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Sizes of a step."""

    tokens: int
    rows: int  # that are taught at some depth
    keys: int  # of depth 0, seen by all rows together
    cells: int
    positions: int  # that teach
    depths: int


def head_flops(config: Eagle3Config, work: Work) -> dict[str, float]:
    """Return the operations by part.

    keys       keys and values of depth 0, fc included: forward twice and backward, for every token
    layer      the layer's products at all depths, and fc, for the rows
    attention  scores and weighted sums of the rows; keys of later depths are left out
    readout    the head's lm_head, for every cell
    teacher    the target's lm_head, for every position that teaches: all of it once, the draft vocabulary once more
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    fc = len(config.taps) * config.target_hidden_size * hidden if config.has_fc else 0
    projections = 2 * hidden * 2 * key
    layer = (2 * hidden + hidden) * query + 3 * hidden * inner
    return {
        "keys": work.tokens * (6.0 * fc + 8.0 * projections),
        "layer": work.rows * (4.0 * fc + 6.0 * (work.depths * layer + (work.depths - 1) * projections)),
        "attention": 14.0 * query * work.keys * work.depths,
        "readout": 6.0 * work.cells * hidden * config.draft_vocab_size,
        "teacher": 2.0 * work.positions * config.target_hidden_size * (config.vocab_size + config.draft_vocab_size),
    }
