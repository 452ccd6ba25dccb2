"""Rounds on simulated machines, in which a policy chooses how many tokens to draft. Everything here is SIMULATED."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tools.drafting.machines import Machine

from eyas.engine.draft_length.choice import AutoDraftLength, DraftLength, RoundOutcome, Tried
from eyas.engine.draft_length.confidence import Cut, level_of
from eyas.engine.draft_length.round_limit import most_drafts
from eyas.engine.draft_length.step_costs import RoundCosts, Timing
from eyas.engine.sequences.ngram_index import LookupMatch, LookupOutcome, NgramIndex

__all__ = ["Copies", "Draft", "Sequences", "auto", "expected_tokens", "run", "static_rate"]

Chances = Callable[[int, float], float]  # (slot, part of the work done) -> acceptance of each draft


NOISE = 0.03  # standard deviation of a round's time
SLOW_ROUNDS, SLOWER = 0.01, (2.0, 5.0)  # this share of rounds takes 2 to 5 times as long
CONCENTRATION = 1.5  # of the beta distribution of a draft's chance, where drafts differ
SIZES = (5,)  # tokens that must have occurred before, to look up
TOO_SURE = 0.5  # a head reports its chance to this power
CHUNK = 2048  # rows of prompts that a step reads at most


class Draft(NamedTuple):
    num_right: int
    levels: list[int]


@dataclass(frozen=True)
class Sequences:
    """Sequences, `batch` at a time, each of `length` tokens; as one ends the next one begins.

    With `confident` each draft has a chance of its own, of which the head knows more than nothing.
    """

    batch: int
    chance: Chances
    length: int = 1000
    confident: bool = False

    def draft(self, slot: int, done: float, num_drafts: int, rng: random.Random) -> Draft:
        mean, num_right, is_right, levels = self.chance(slot, done), 0, True, []
        for _ in range(num_drafts):
            chance = mean
            if self.confident:
                chance = rng.betavariate(mean * CONCENTRATION, (1 - mean) * CONCENTRATION)
                levels.append(level_of(chance**TOO_SURE))
            is_right = is_right and rng.random() < chance
            num_right += is_right
        return Draft(num_right, levels)

    def text(self, slot: int, rng: random.Random) -> tuple[list[int], list[int]]:
        """Prompt and answer of a new sequence; here nothing repeats, so that there is nothing to look up."""
        return [], [rng.getrandbits(60) for _ in range(self.length)]


@dataclass(frozen=True)
class Copies(Sequences):
    """Answers of passages of the prompt, of `passage` tokens on average, and of tokens of their own, in turn."""

    passage: int = 60
    own: int = 20

    def text(self, slot: int, rng: random.Random) -> tuple[list[int], list[int]]:
        prompt, answer = [rng.getrandbits(60) for _ in range(self.length)], list[int]()
        while len(answer) < self.length:
            start = rng.randrange(self.length)
            answer += prompt[start : start + int(rng.expovariate(1 / self.passage))]
            answer += [rng.getrandbits(60) for _ in range(int(rng.expovariate(1 / self.own)))]
        return prompt, answer[: self.length]


class _Running:
    """A sequence under way. The host knows its text except the last round, as with a GPU."""

    def __init__(self, work: Sequences, slot: int, rng: random.Random) -> None:
        prompt, self._answer = work.text(slot, rng)
        self._own, self._done, self.match = NgramIndex(prompt, SIZES), 0, LookupMatch(0, 0)

    @property
    def left(self) -> int:
        return len(self._answer) - self._done

    def come(self, count: int) -> list[LookupOutcome]:
        lookups = self._own.extend(self._answer[self._done : self._done + count])
        self._done += count
        return lookups

    def look_up(self, limit: int) -> tuple[int, list[LookupOutcome]]:
        """Return how many looked-up drafts are accepted, and commit these and one more token."""
        lookups: list[LookupOutcome] = []
        for num_right in range(limit + 1):
            newest = self.come(1)
            lookups += newest
            if num_right == limit or not newest or not newest[0].is_right or not self.left:
                return num_right, lookups
        raise AssertionError

    def round(self, draft: Draft | None, limit: int) -> tuple[int, list[LookupOutcome]]:
        """Do a round with a head's drafts, if they are not looked up."""
        match = self._own.match
        num_right, lookups = self.look_up(limit) if draft is None else (min(draft.num_right, limit), [])
        if draft is not None:
            lookups = self.come(num_right + 1)
        self.match = LookupMatch(match, limit + 1)
        return num_right, lookups


def _worth(levels: list[int], cut: Cut, slot: int) -> int:
    """Drafts that are worth a row: what the device does with a threshold and a table."""
    if slot not in cut.slots:
        return len(levels)
    chance, (threshold, *chances) = 0.0, cut.logs_SN[cut.slots.index(slot)]
    for count, level in enumerate(levels):
        chance += chances[level]
        if chance < threshold:
            return count
    return len(levels)


def run(
    policy: DraftLength,
    machine: Machine,
    work: Sequences,
    *,
    num_tokens: int,
    seed: int = 0,
    use_confidence: bool = True,
    prompt_tokens: int = 0,
) -> float:
    """Tokens per second over `num_tokens` in all. The times of rounds are noisy, those of static choices too.

    A closed loop: as a sequence ends, the prompt of the next is read, in steps of at most CHUNK rows beside the others.
    """
    rng = random.Random(seed)
    running = [_Running(work, slot, rng) for slot in range(work.batch)]
    for slot, sequence in enumerate(running):
        policy.enter(slot)
        sequence.come(rng.randrange(work.length - 1))
    tokens, elapsed, unread = 0, 0.0, dict[int, int]()  # rows of their prompts, by slot
    while tokens < num_tokens:
        slots = [slot for slot in range(work.batch) if slot not in unread]
        num_prompt_rows = _read(unread)
        if not slots:
            elapsed += machine.prompt_seconds(num_prompt_rows)
            continue
        matches = [running[slot].match for slot in slots]
        caps = [max(0, running[slot].left - 1) for slot in slots]
        choice = policy.choose(slots, caps, matches)
        tried, cut = [], policy.cut(slots, choice)
        for slot, limit, by_lookup in zip(slots, choice.limits, choice.by_lookup, strict=True):
            draft = None if by_lookup else work.draft(slot, tokens / num_tokens, limit, rng)
            levels = draft.levels if draft and use_confidence else []
            verified = _worth(levels, cut, slot) if levels else limit
            accepted, lookups = running[slot].round(draft, verified)
            tried.append(Tried(slot, limit, accepted, verified, by_lookup, levels, lookups))
            tokens += accepted + 1
        rows = len(slots) + sum(of_one.verified for of_one in tried)
        seconds = machine.seconds(len(slots), rows, choice.head_drafts) + machine.prompt_seconds(num_prompt_rows)
        seconds *= rng.gauss(1, NOISE)
        if rng.random() < SLOW_ROUNDS:
            seconds *= rng.uniform(*SLOWER)
        elapsed += seconds
        timing = Timing(len(slots), rows, choice.head_drafts, seconds, num_prompt_rows)
        policy.observe(RoundOutcome(tried, timing))
        for slot in slots:
            if running[slot].left <= 0:
                running[slot] = _Running(work, slot, rng)
                policy.enter(slot)
                if prompt_tokens:
                    unread[slot] = prompt_tokens
    return tokens / elapsed


def _read(unread: dict[int, int]) -> int:
    """Read the oldest prompts, and return the rows; those read to their end are removed."""
    room = CHUNK
    for slot, left in list(unread.items()):
        room -= (rows := min(room, left))
        unread[slot] -= rows
        if not unread[slot]:
            del unread[slot]
    return CHUNK - room


def static_rate(machine: Machine, batch: int, chances: Sequence[float], num_drafts: int) -> float:
    """Tokens per second to expect of a number of drafts that stays, each of `chances` for as many tokens."""
    slower = 1 + SLOW_ROUNDS * (sum(SLOWER) / 2 - 1)
    seconds = slower * machine.seconds(batch, batch * (num_drafts + 1), num_drafts)
    return len(chances) / sum(seconds / (batch * expected_tokens(chance, num_drafts)) for chance in chances)


def expected_tokens(chance: float, num_drafts: int) -> float:
    """Return the expected tokens of one sequence's round, bonus token included."""
    return sum(chance**i for i in range(num_drafts + 1))


def auto(
    machine: Machine,
    max_drafts: int,
    batches: tuple[int, ...],
    *,
    seed: int = 0,
    has_lookup: bool = False,
    max_rows: int | None = None,
) -> AutoDraftLength:
    """The policy with what its timer would have measured at start-up."""
    rng = random.Random(seed)
    costs = RoundCosts(max_drafts, max_rows=max_rows)
    costs.learn(
        Timing(s, s * (k + 1), k, machine.seconds(s, s * (k + 1), k) * rng.gauss(1, 0.02))
        for s in batches
        for k in range(most_drafts(s, max_drafts, max_rows) + 1)
    )
    return AutoDraftLength(max_drafts, costs, has_lookup=has_lookup)
