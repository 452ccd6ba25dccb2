"""Chooses per-sequence draft lengths that maximise expected throughput. Pure functions of numbers.

The worth of a draft is the chance that it and all before it are accepted. For every number of head drafts, rows go to
the most likely drafts first, so the best set of any size is a prefix of one sorted list.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DraftChoice", "best_choice", "rate_choice"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class DraftChoice(NamedTuple):
    """Draft lengths of a round: `limits` by sequence; the head draws `head_drafts` for those not `by_lookup`.

    The round is expected to commit `tokens`, bonus tokens included, in `seconds`. A draft whose chance turns out to be
    below `min_chance` is not worth its row.
    """

    limits: tuple[int, ...]
    head_drafts: int
    by_lookup: tuple[bool, ...]
    tokens: float
    seconds: float
    min_chance: float


def best_choice(seconds: Floats, chances_SK: Floats, caps_S: Ints, lookup_SK: Floats | None = None) -> DraftChoice:
    """Return the draft lengths with the most expected tokens per second.

    `seconds` [head drafts, draft rows] never fall along either axis; `chances` are conditional on the drafts before;
    `caps` bound the drafts of each sequence. `lookup` are the chances of prompt-lookup drafts, which cost no head
    pass: each sequence takes the drafter with more expected acceptances, unless the round is faster without lookup.
    """
    if lookup_SK is not None:
        both, alone = (_best(seconds, chances_SK, caps_S, given) for given in (lookup_SK, None))
        return max(both, alone, key=lambda choice: choice.tokens / choice.seconds)
    return _best(seconds, chances_SK, caps_S, None)


def _best(seconds: Floats, chances_SK: Floats, caps_S: Ints, lookup_SK: Floats | None) -> DraftChoice:
    num_sequences, num_drafts = chances_SK.shape
    is_allowed_SK = np.arange(num_drafts) < caps_S[:, None]
    head_SK, looked_up_SK = chances_SK.cumprod(1) * is_allowed_SK, np.zeros_like(chances_SK)
    looks_up_S, by_head_S = np.zeros(num_sequences, dtype=np.bool_), np.zeros(num_sequences)
    if lookup_SK is not None:
        looked_up_SK = lookup_SK.cumprod(1) * is_allowed_SK
    by_lookup_S, best = looked_up_SK.sum(1), (-1.0, 0, 0, 0.0, looks_up_S)  # tokens per second, where and of whom
    for head_drafts in range(num_drafts + 1):
        if head_drafts:
            by_head_S = by_head_S + head_SK[:, head_drafts - 1]
        if lookup_SK is None:
            drafts = head_SK[:, :head_drafts].flatten()
        else:
            looks_up_S = by_lookup_S > by_head_S
            drafts = np.concatenate((head_SK[~looks_up_S, :head_drafts], looked_up_SK[looks_up_S]), axis=None)
        drafts.sort()
        tokens = np.full(len(drafts) + 1, float(num_sequences))
        tokens[1:] += drafts[::-1].cumsum()
        rates = tokens / seconds[head_drafts, : len(tokens)]
        rows = int(rates.argmax())
        if rates[rows] > best[0]:
            best = float(rates[rows]), head_drafts, rows, float(tokens[rows]), looks_up_S
    rate, head_drafts, rows, num_tokens, looks_up_S = best
    in_reach_SK = head_SK * (np.arange(num_drafts) < head_drafts)
    limits = _most_likely(np.where(looks_up_S[:, None], looked_up_SK, in_reach_SK), rows)
    fewer = max(0, rows - num_sequences)
    slope = (seconds[head_drafts, rows] - seconds[head_drafts, fewer]) / max(1, rows - fewer)
    return DraftChoice(
        tuple(limits.tolist()),
        head_drafts,
        tuple((looks_up_S & (limits > 0)).tolist()),
        num_tokens,
        float(seconds[head_drafts, rows]),
        float(slope * rate),
    )


def rate_choice(
    seconds: Floats,
    chances_SK: Floats,
    limits_S: Ints,
    lookup_SK: Floats | None = None,
    by_lookup_S: NDArray[np.bool_] | None = None,
) -> DraftChoice:
    """Return the expected tokens and time of given draft lengths."""
    num_sequences, num_drafts = chances_SK.shape
    if lookup_SK is None or by_lookup_S is None:
        by_lookup_S = np.zeros(num_sequences, dtype=np.bool_)
    else:
        chances_SK = np.where(by_lookup_S[:, None], lookup_SK, chances_SK)
    survival_SK = chances_SK.cumprod(1) * (np.arange(num_drafts) < limits_S[:, None])
    head_drafts, rows = int((limits_S * ~by_lookup_S).max()), int(limits_S.sum())
    return DraftChoice(
        tuple(limits_S.tolist()),
        head_drafts,
        tuple(by_lookup_S.tolist()),
        num_sequences + float(survival_SK.sum()),
        float(seconds[head_drafts, rows]),
        0.0,
    )


def _most_likely(survival_SK: Floats, rows: int) -> Ints:
    """Return how many of the `rows` most likely drafts are of each sequence; ties go to the first sequences."""
    if not rows:
        return np.zeros(len(survival_SK), dtype=np.int64)
    least = np.partition(survival_SK, -rows, axis=None)[-rows]
    limits: Ints = (survival_SK > least).sum(1)
    equal = (survival_SK == least).sum(1)
    before = np.cumsum(equal) - equal
    limits += np.clip(rows - int(limits.sum()) - before, 0, equal)
    return limits
