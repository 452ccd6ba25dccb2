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


def best_choice(
    seconds: Floats, chances_SK: Floats, caps_S: NDArray[np.int64], lookup_SK: Floats | None = None
) -> DraftChoice:
    """Return the draft lengths with the most expected tokens per second.

    `seconds` [head drafts, draft rows] never fall along either axis; `chances` are conditional on the drafts before;
    `caps` bound the drafts of each sequence. `lookup` are the chances of prompt-lookup drafts, which cost no head
    pass: each sequence takes the drafter with more expected acceptances, unless the round is faster without lookup.
    """
    if lookup_SK is not None:
        both, alone = (_best(seconds, chances_SK, caps_S, given) for given in (lookup_SK, None))
        return max(both, alone, key=lambda choice: choice.tokens / choice.seconds)
    return _best(seconds, chances_SK, caps_S, None)


def _best(seconds: Floats, chances_SK: Floats, caps_S: NDArray[np.int64], lookup_SK: Floats | None) -> DraftChoice:
    survival_NSK, by_lookup_NS = _survival(chances_SK, caps_S, lookup_SK)
    num_sequences = len(chances_SK)
    flat = survival_NSK.reshape(len(survival_NSK), -1)
    tokens = np.empty((len(flat), flat.shape[1] + 1))
    tokens[:, 0] = num_sequences
    np.cumsum(-np.sort(-flat, axis=1), axis=1, out=tokens[:, 1:])
    tokens[:, 1:] += num_sequences
    rates = tokens / seconds[: len(flat)]
    head_drafts, rows = divmod(int(rates.argmax()), rates.shape[1])
    limits = _most_likely(survival_NSK[head_drafts], rows)
    by_lookup = by_lookup_NS[head_drafts] & (limits > 0)
    fewer = max(0, rows - num_sequences)
    slope = (seconds[head_drafts, rows] - seconds[head_drafts, fewer]) / max(1, rows - fewer)
    return DraftChoice(
        tuple(limits.tolist()),
        head_drafts,
        tuple(by_lookup.tolist()),
        float(tokens[head_drafts, rows]),
        float(seconds[head_drafts, rows]),
        float(slope * rates[head_drafts, rows]),
    )


def rate_choice(
    seconds: Floats,
    chances_SK: Floats,
    limits_S: NDArray[np.int64],
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


def _survival(
    chances_SK: Floats, caps_S: NDArray[np.int64], lookup_SK: Floats | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the chance that a draft and all before it are accepted, and whether a sequence looks its drafts up.

    Both are for N = 0, 1, ... head drafts.
    """
    num_sequences, num_drafts = chances_SK.shape
    column = np.arange(num_drafts)
    is_allowed = column < caps_S[:, None]
    in_reach = column < np.arange(num_drafts + 1)[:, None, None]
    survival_NSK = (chances_SK.cumprod(1) * is_allowed) * in_reach
    if lookup_SK is None:
        return survival_NSK, np.zeros((num_drafts + 1, num_sequences), dtype=np.bool_)
    looked_up_SK = lookup_SK.cumprod(1) * is_allowed
    by_lookup_NS = looked_up_SK.sum(1) > survival_NSK.sum(2)
    return np.where(by_lookup_NS[:, :, None], looked_up_SK, survival_NSK), by_lookup_NS


def _most_likely(survival_SK: Floats, rows: int) -> NDArray[np.int64]:
    """Return how many of the `rows` most likely drafts are of each sequence; ties go to the first sequences."""
    if not rows:
        return np.zeros(len(survival_SK), dtype=np.int64)
    least = np.sort(survival_SK, axis=None)[-rows]
    limits: NDArray[np.int64] = (survival_SK > least).sum(1)
    equal = (survival_SK == least).sum(1)
    before = np.cumsum(equal) - equal
    limits += np.clip(rows - int(limits.sum()) - before, 0, equal)
    return limits
