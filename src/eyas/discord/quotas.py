"""Limits of one person: answers at once, and tokens a day, which is one of the calendar in UTC.

Pure: times come from the caller, in seconds since 1970. An answer is let in while its person has tokens left, whatever
it will take, so the last one of a day may go over the limit. Its tokens count for the day on which it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from eyas.discord.settings.schema import Limits

__all__ = ["Quotas", "day_of"]

DAY_S = 86_400


def day_of(now: float) -> int:
    """Return the number of a day, counted from 1970 in UTC."""
    return int(now // DAY_S)


class Quotas:
    """Counts answers and tokens by person. `limits` may be set again while answers run."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()
        self._day = 0

    def restore(self, day: int, tokens: Mapping[int, int]) -> None:
        """Take over the tokens of a day that were counted before a restart."""
        self._day, self._tokens = day, Counter(tokens)

    def enter(self, person: int, now: float, *, is_operator: bool = False) -> str | None:
        """Let an answer begin and return None, or return why not and when to ask again. `leave` ends the answer."""
        refusal = self.refusal(person, now, is_operator=is_operator)
        if refusal is None:
            self._open[person] += 1
        return refusal

    def refusal(self, person: int, now: float, *, is_operator: bool = False) -> str | None:
        """Return why no answer may begin for a person, and when to ask again; None if one may."""
        limits = self.limits
        used = self.used(person, now)
        if not is_operator and limits.answers_at_once is not None and self._open[person] >= limits.answers_at_once:
            answers = f"{self._open[person]} answers are" if self._open[person] > 1 else "1 answer is"
            return f"{answers} being written for you already. Ask again when one has ended, or stop one."
        if not is_operator and limits.tokens_a_day is not None and used >= limits.tokens_a_day:
            free_at = (day_of(now) + 1) * DAY_S
            return (
                f"You have used {used:,} tokens today, of {limits.tokens_a_day:,} a day. "
                f"Ask again at <t:{free_at}:t> (<t:{free_at}:R>)."
            )
        return None

    def leave(self, person: int, tokens: int, now: float) -> int:
        """End an answer that took `tokens`, those of its prompt included, and return the person's tokens of the day."""
        self._open[person] -= 1
        if self._open[person] <= 0:
            del self._open[person]
        self._turn(now)
        self._tokens[person] += tokens
        return self._tokens[person]

    def used(self, person: int, now: float) -> int:
        """Return the tokens that a person has used today."""
        self._turn(now)
        return self._tokens[person]

    def _turn(self, now: float) -> None:
        """Begin a new day if it is one. A clock that was put back does not."""
        if day_of(now) > self._day:
            self._day = day_of(now)
            self._tokens.clear()
