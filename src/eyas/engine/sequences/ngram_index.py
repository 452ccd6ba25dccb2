"""Predicts the acceptance of prompt-lookup (n-gram) drafts from the tokens seen so far, on the host.

No draft need be tried for it: each new token shows whether the token after the earlier occurrence of the same n-gram
was right. The device finds drafts by the same rule (`kernels.reference.rounds.lookup`), in tokens that include those
which the host has not seen yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eyas.engine.sequences.decaying import add_outcomes

__all__ = ["LookupCurve", "LookupMatch", "LookupOutcome", "NgramIndex"]

# Acceptance rates for matches of 0, 1, 2..3, 4..7, 8..15, ... tokens, measured on Python source after Python source.
FIRST_GUESSES = (0.0, 0.2, 0.38, 0.59, 0.74, 0.85, 0.93, 0.97)
GUESS_TRIES = 16.0
KEEP = 1 - 1 / 400  # about the last 400 tokens of a level count
LONGEST = 128  # longer matches count as this long
NOTHING = 1e-9

Floats = NDArray[np.float64]


class LookupOutcome(NamedTuple):
    """Whether the draft that prompt lookup would have made for a token was right, after a match of `match` tokens."""

    match: int
    is_right: bool


class LookupMatch(NamedTuple):
    """The match of a sequence: its known length, and how many tokens the host may not have seen since."""

    length: int
    num_unknown: int


class NgramIndex:
    """The tokens of a sequence, and the latest earlier occurrence of its last tokens.

    `match` counts the tokens at the end that equal those at the end of that occurrence; 0 without one.
    """

    def __init__(self, tokens: Sequence[int], sizes: Sequence[int]) -> None:
        """`sizes` are the n-gram sizes to look for, the preferred one first."""
        self._tokens = list(tokens)
        self._places = [(size, _places(self._tokens, size)) for size in sizes]  # by hash: end of the latest one
        self._place, self.match = self._find(-1, 0)

    def extend(self, tokens: Sequence[int]) -> list[LookupOutcome]:
        """Append tokens, and return the outcome of lookup for those that it would have drafted."""
        lookups, known, place, match = [], self._tokens, self._place, self.match
        for token in tokens:
            if match:
                lookups.append(LookupOutcome(match, token == known[place]))
            known.append(token)
            place, match = self._find(place, match)
        self._place, self.match = place, match
        return lookups

    def _find(self, place: int, match: int) -> tuple[int, int]:
        """Return where the last tokens occurred before and the match there; `place` and `match` are the last ones."""
        tokens, found, found_match = self._tokens, -1, 0
        end = len(tokens)
        for size, places in self._places:
            key = hash(tuple(tokens[-size:]))
            if found < 0:
                found = places.get(key, -1)
                if found >= 0:
                    found_match = match + 1 if found == place + 1 else size
            places[key] = end
        return found, found_match


def _places(tokens: list[int], size: int) -> dict[int, int]:
    """Return, by hash, where each n-gram ended last; the one at the end of `tokens` is left out."""
    earlier = tokens[:-1]
    runs = zip(*(islice(earlier, start, None) for start in range(size)), strict=False)
    return dict(zip(map(hash, runs), range(size, len(tokens)), strict=False))


class LookupCurve:
    """Acceptance rate of prompt-lookup drafts by the length of the match, over all sequences."""

    def __init__(self, max_drafts: int) -> None:
        self._guesses = np.array(FIRST_GUESSES)
        self._hits, self._tries = np.zeros_like(self._guesses), np.zeros_like(self._guesses)
        self._column = np.arange(max_drafts)
        self._levels = np.array([_level(match) for match in range(2 * LONGEST)])

    def observe(self, lookups: Sequence[LookupOutcome]) -> None:
        if lookups:
            matches, is_right = (np.array(part) for part in zip(*lookups, strict=True))
            levels = self._levels[matches.clip(max=LONGEST)]
            add_outcomes(self._hits, self._tries, levels, is_right, KEEP)

    def chances(self, matches: Sequence[LookupMatch]) -> Floats:
        """Return the chance [S, K] of each draft, given that all before it are right.

        The first column includes the chance that the tokens which the host has not seen continue the match.
        """
        by_level = (self._hits + GUESS_TRIES * self._guesses) / (self._tries + GUESS_TRIES)
        of_match = by_level[self._levels]
        match_S, num_unknown_S = (np.array(part) for part in zip(*matches, strict=True))
        match_S = match_S.clip(max=LONGEST)
        now_S = (match_S + num_unknown_S).clip(max=LONGEST)
        chances_SK: Floats = of_match[now_S[:, None] + self._column]
        logs = np.log(of_match.clip(NOTHING)).cumsum()
        chances_SK[:, 0] *= np.exp(logs[now_S - 1] - logs[match_S - 1])
        chances_SK[match_S == 0] = 0
        return chances_SK


def _level(match: int) -> int:
    return min(match.bit_length(), len(FIRST_GUESSES) - 1)
