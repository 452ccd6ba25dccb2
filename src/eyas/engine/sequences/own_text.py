"""What looking up in a sequence's own tokens foretells, followed on the host as the tokens come.

So it is known how far to trust it without ever trying it: each token that comes says whether the one that followed the
same words before was right. The device finds drafts by the same rule (`kernels.reference.lookup`), among tokens that
the host has not seen yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Foretold", "LookupCurve", "OwnText", "Prospect"]

# Of matches of 0, 1, 2..3, 4..7, 8..15, ... tokens; measured where Python source follows other Python source.
FIRST_GUESSES = (0.0, 0.2, 0.38, 0.59, 0.74, 0.85, 0.93, 0.97)
GUESS_TRIES = 16.0
KEEP = 1 - 1 / 400  # about the last 400 tokens of a level count
LONGEST = 128  # match that is told apart from longer ones
NOTHING = 1e-9

Floats = NDArray[np.float64]


class Foretold(NamedTuple):
    """A token came where looking up would have drafted one, rightly or not; `match` were like the ones before."""

    match: int
    is_right: bool


class Prospect(NamedTuple):
    """For how many tokens a sequence is known to have followed what it looks up, and how many may have come since."""

    match: int
    num_unknown: int


class OwnText:
    """The tokens of a sequence, and where the last ones occurred before.

    `match` counts the tokens before the end that are like those before the place that is looked up; 0 if there is none.
    """

    def __init__(self, tokens: Sequence[int], sizes: Sequence[int]) -> None:
        """`sizes` are the numbers of tokens that are looked for, the one to be preferred first."""
        self._tokens = list(tokens)
        self._places = {size: _places(self._tokens, size) for size in sizes}  # by hash: where those tokens ended last
        self._place = -1
        self.match = 0
        self._find()

    def extend(self, tokens: Sequence[int]) -> list[Foretold]:
        foretold = []
        for token in tokens:
            if self.match:
                foretold.append(Foretold(self.match, token == self._tokens[self._place]))
            self._tokens.append(token)
            self._find()
        return foretold

    def _find(self) -> None:
        end, found, match = len(self._tokens), -1, 0
        for size, places in self._places.items():
            key = hash(tuple(self._tokens[-size:]))
            if found < 0 and (found := places.get(key, -1)) >= 0:
                match = self.match + 1 if found == self._place + 1 else size
            places[key] = end
        self._place, self.match = found, match


def _places(tokens: list[int], size: int) -> dict[int, int]:
    """Of all runs but the one at the end; the latest of equal ones stays."""
    earlier = tokens[:-1]
    runs = zip(*(islice(earlier, start, None) for start in range(size)), strict=False)
    return dict(zip(map(hash, runs), range(size, len(tokens)), strict=False))


class LookupCurve:
    """Chance that the next token looked up is right, by the length of the match, whichever sequence it is."""

    def __init__(self, max_drafts: int) -> None:
        self._guesses = np.array(FIRST_GUESSES)
        self._hits, self._tries = np.zeros_like(self._guesses), np.zeros_like(self._guesses)
        self._column = np.arange(max_drafts)
        self._levels = np.array([_level(match) for match in range(2 * LONGEST)])

    def observe(self, foretold: Sequence[Foretold]) -> None:
        for match, is_right in foretold:
            level = _level(match)
            self._hits[level] = self._hits[level] * KEEP + is_right
            self._tries[level] = self._tries[level] * KEEP + 1

    def chances(self, prospects: Sequence[Prospect]) -> Floats:
        """[S, K]: of each draft, given that all before it are right. The first one's needs what came unknown, too."""
        by_level = (self._hits + GUESS_TRIES * self._guesses) / (self._tries + GUESS_TRIES)
        of_match = by_level[self._levels]
        match_S, num_unknown_S = np.array(prospects, dtype=np.int64).reshape(-1, 2).T
        match_S = match_S.clip(max=LONGEST)
        now_S = (match_S + num_unknown_S).clip(max=LONGEST)
        chances_SK: Floats = of_match[now_S[:, None] + self._column]
        logs = np.log(of_match.clip(NOTHING)).cumsum()
        chances_SK[:, 0] *= np.exp(logs[now_S - 1] - logs[match_S - 1])
        chances_SK[match_S == 0] = 0
        return chances_SK


def _level(match: int) -> int:
    return min(match.bit_length(), len(FIRST_GUESSES) - 1)
