"""Checks two conversations at once: no answer has anything of the other's, and neither waits for the other's end."""

from __future__ import annotations

import asyncio
import secrets

from eyas.bench.check.asking import Endpoint, Streamed
from eyas.bench.check.finding import Result, broken, missing, ok, unclear

__all__ = ["two_at_once"]

ROUNDS = 4
TOKENS = 256
MIN_PIECES = 3


async def two_at_once(endpoint: Endpoint) -> Result:
    """Ask two sums alone and then both at once, greedily.

    An answer is mixed up if it has the other's sum, which its own answer alone lacks, or is the other's answer. A sum
    has five digits, so that a model's mistake is the other's sum in about 1 of 10,000 rounds at most, and is counted
    only if it happens twice.
    """
    mixed, judged = [], 0
    overlaps: list[bool] = []
    for _ in range(ROUNDS):
        (one, one_sum), (other, other_sum) = _question(), _question()
        alone = [await endpoint.stream(text, max_tokens=TOKENS, temperature=0) for text in (one, other)]
        both = await asyncio.gather(*(endpoint.stream(text, max_tokens=TOKENS, temperature=0) for text in (one, other)))
        overlaps += _overlap(*both)
        texts = [_plain(found) for found in alone]
        if texts[0] == texts[1]:
            continue
        judged += 1
        for mine, theirs, foreign in ((0, 1, other_sum), (1, 0, one_sum)):
            said = _plain(both[mine])
            if said == texts[mine]:
                continue
            if said == texts[theirs] or (foreign in said and foreign not in texts[mine]):
                mixed.append(both[mine].request)
    if len(mixed) > 1:
        return broken(f"{len(mixed)} of {2 * judged} answers have what the other conversation was asked", mixed[0])
    if not judged:
        return unclear("this model gives both conversations the same answer")
    if overlaps and not any(overlaps):
        return missing("one answer waits for the end of the other (no mixing)")
    return ok(f"{2 * judged} answers, each its own{'; both go on at once' if overlaps else ''}")


def _question() -> tuple[str, str]:
    one, other = (6_000 + secrets.randbelow(4_000) for _ in range(2))
    return f"What is {one} + {other}?", str(one + other)


def _plain(found: Streamed) -> str:
    return found.answer.text.replace(",", "")


def _overlap(one: Streamed, other: Streamed) -> list[bool]:
    """Return whether each began before the other had ended; nothing for answers of too few pieces to tell."""
    if min(len(one.times_s), len(other.times_s)) < MIN_PIECES:
        return []
    return [one.times_s[0] <= other.times_s[-1] and other.times_s[0] <= one.times_s[-1]]
