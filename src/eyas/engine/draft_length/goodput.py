"""How many tokens to draft for each sequence: the numbers with the most expected tokens a second. Pure.

A draft is worth its chance that it and all before it are accepted. For every number of passes of the head, rows are
given to the most likely drafts first, so the best set of any size is a prefix of one sorted list.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DraftChoice", "best_choice", "rate_choice"]

Floats = NDArray[np.float64]


class DraftChoice(NamedTuple):
    """`limits` are drafts of each sequence, `head_drafts` how many the head draws for those that look up none.

    `tokens` and `seconds` are what the round should commit, bonus tokens included, and take. A draft whose chance turns
    out to be below `min_chance` is not worth its row.
    """

    limits: tuple[int, ...]
    head_drafts: int
    by_lookup: tuple[bool, ...]
    tokens: float
    seconds: float
    min_chance: float


def best_choice(
    seconds: Floats, chances_SK: Floats, rooms_S: NDArray[np.int64], lookup_SK: Floats | None = None
) -> DraftChoice:
    """`seconds` [passes of the head, draft rows] never fall; `chances` are conditional on the drafts before.

    `rooms` bound the drafts of each sequence. With `lookup`, the chances of drafts that cost no passes, each sequence
    takes its drafts from where more are expected to be accepted, unless the round is better off without.
    """
    if lookup_SK is not None:
        both, alone = (_best(seconds, chances_SK, rooms_S, given) for given in (lookup_SK, None))
        return max(both, alone, key=lambda choice: choice.tokens / choice.seconds)
    return _best(seconds, chances_SK, rooms_S, None)


def _best(seconds: Floats, chances_SK: Floats, rooms_S: NDArray[np.int64], lookup_SK: Floats | None) -> DraftChoice:
    survival_NSK, by_lookup_NS = _survival(chances_SK, rooms_S, lookup_SK)
    num_sequences = len(chances_SK)
    flat = survival_NSK.reshape(len(survival_NSK), -1)
    tokens = np.empty((len(flat), flat.shape[1] + 1))
    tokens[:, 0] = num_sequences
    np.cumsum(-np.sort(-flat, axis=1), axis=1, out=tokens[:, 1:])
    tokens[:, 1:] += num_sequences
    rates = tokens / seconds[: len(flat)]
    steps, rows = divmod(int(rates.argmax()), rates.shape[1])
    limits = _most_likely(survival_NSK[steps], rows)
    by_lookup = by_lookup_NS[steps] & (limits > 0)
    behind = max(0, rows - num_sequences)
    slope = (seconds[steps, rows] - seconds[steps, behind]) / max(1, rows - behind)
    return DraftChoice(
        tuple(limits.tolist()),
        steps,
        tuple(by_lookup.tolist()),
        float(tokens[steps, rows]),
        float(seconds[steps, rows]),
        float(slope * rates[steps, rows]),
    )


def rate_choice(
    seconds: Floats,
    chances_SK: Floats,
    limits_S: NDArray[np.int64],
    lookup_SK: Floats | None = None,
    by_lookup_S: NDArray[np.bool_] | None = None,
) -> DraftChoice:
    """What given numbers of drafts would bring."""
    num_sequences, num_drafts = chances_SK.shape
    if lookup_SK is None or by_lookup_S is None:
        by_lookup_S = np.zeros(num_sequences, dtype=np.bool_)
    else:
        chances_SK = np.where(by_lookup_S[:, None], lookup_SK, chances_SK)
    survival_SK = chances_SK.cumprod(1) * (np.arange(num_drafts) < limits_S[:, None])
    steps, rows = int((limits_S * ~by_lookup_S).max()), int(limits_S.sum())
    return DraftChoice(
        tuple(limits_S.tolist()),
        steps,
        tuple(by_lookup_S.tolist()),
        num_sequences + float(survival_SK.sum()),
        float(seconds[steps, rows]),
        0.0,
    )


def _survival(
    chances_SK: Floats, rooms_S: NDArray[np.int64], lookup_SK: Floats | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Chances that a draft and all before it are accepted, for 0, 1, ... passes of the head; and who looks up."""
    num_sequences, num_drafts = chances_SK.shape
    column = np.arange(num_drafts)
    has_room = column < rooms_S[:, None]
    in_reach = column < np.arange(num_drafts + 1)[:, None, None]
    survival_NSK = (chances_SK.cumprod(1) * has_room) * in_reach
    if lookup_SK is None:
        return survival_NSK, np.zeros((num_drafts + 1, num_sequences), dtype=np.bool_)
    looked_up_SK = lookup_SK.cumprod(1) * has_room
    by_lookup_NS = looked_up_SK.sum(1) > survival_NSK.sum(2)
    return np.where(by_lookup_NS[:, :, None], looked_up_SK, survival_NSK), by_lookup_NS


def _most_likely(survival_SK: Floats, rows: int) -> NDArray[np.int64]:
    """Drafts of each sequence among the `rows` most likely; of equal ones those of the first sequences."""
    if not rows:
        return np.zeros(len(survival_SK), dtype=np.int64)
    least = np.sort(survival_SK, axis=None)[-rows]
    limits: NDArray[np.int64] = (survival_SK > least).sum(1)
    equal = (survival_SK == least).sum(1)
    before = np.cumsum(equal) - equal
    limits += np.clip(rows - int(limits.sum()) - before, 0, equal)
    return limits
