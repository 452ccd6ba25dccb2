"""Rounds on simulated machines, in which a policy chooses how many tokens to draft. Everything here is SIMULATED."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tools.drafting.machines import Machine

from eyas.engine.draft_length import AutoDraftLength, DraftLength, RoundOutcome
from eyas.engine.step_costs import RoundCosts, Timing

__all__ = ["Draft", "Sequences", "auto", "expected_tokens", "run", "static_rate"]

Chances = Callable[[int, float], float]  # (slot, part of the work done) -> acceptance of each draft


NOISE = 0.03  # standard deviation of a round's time
SLOW_ROUNDS, SLOWER = 0.01, (2.0, 5.0)  # so many take so many times as long
CONCENTRATION = 1.5  # of the beta distribution of a draft's chance, where drafts differ
TOO_SURE = 0.5  # a head reports its chance to this power


class Draft(NamedTuple):
    num_right: int
    confidences: list[float]


@dataclass(frozen=True)
class Sequences:
    """`batch` at a time, each of `length` tokens; as one ends the next one begins.

    With `confident` each draft has a chance of its own, of which the head knows more than nothing.
    """

    batch: int
    chance: Chances
    length: int = 1000
    confident: bool = False

    def draft(self, slot: int, done: float, num_drafts: int, rng: random.Random) -> Draft:
        mean, num_right, is_right, confidences = self.chance(slot, done), 0, True, []
        for _ in range(num_drafts):
            chance = mean
            if self.confident:
                chance = rng.betavariate(mean * CONCENTRATION, (1 - mean) * CONCENTRATION)
                confidences.append(chance**TOO_SURE)
            is_right = is_right and rng.random() < chance
            num_right += is_right
        return Draft(num_right, confidences)


def _worth(policy: AutoDraftLength, confidences: list[float], min_chance: float) -> int:
    """Drafts that are worth a row: what the device does with a threshold and a table."""
    chance = 1.0
    for count, confidence in enumerate(confidences):
        chance *= policy.confidence.chances()[policy.confidence.bucket(confidence)]
        if chance < min_chance:
            return count
    return len(confidences)


def run(
    policy: DraftLength,
    machine: Machine,
    work: Sequences,
    *,
    num_tokens: int,
    seed: int = 0,
    use_confidence: bool = True,
) -> float:
    """Tokens per second over `num_tokens` in all. The times of rounds are noisy, those of static choices too."""
    rng = random.Random(seed)
    slots = list(range(work.batch))
    left = [rng.randrange(work.length) + 2 for _ in slots]
    for slot in slots:
        policy.enter(slot)
    tokens, elapsed = 0, 0.0
    while tokens < num_tokens:
        choice = policy.choose(slots, [max(0, rest - 1) for rest in left])
        drafts = [work.draft(slot, tokens / num_tokens, limit, rng) for slot, limit in enumerate(choice.limits)]
        verified = [choice.limits[slot] for slot in slots]
        if work.confident and use_confidence:
            assert isinstance(policy, AutoDraftLength)
            verified = [_worth(policy, draft.confidences, choice.min_chance) for draft in drafts]
        accepted = [min(draft.num_right, count) for draft, count in zip(drafts, verified, strict=True)]
        rows = work.batch + sum(verified)
        seconds = machine.seconds(work.batch, rows, choice.num_steps) * rng.gauss(1, NOISE)
        if rng.random() < SLOW_ROUNDS:
            seconds *= rng.uniform(*SLOWER)
        elapsed += seconds
        timing = Timing(work.batch, rows, choice.num_steps, seconds)
        confidences = [draft.confidences for draft in drafts] if work.confident and use_confidence else ()
        policy.observe(RoundOutcome(slots, choice.limits, accepted, timing, verified=verified, confidences=confidences))
        for slot, count in enumerate(accepted):
            tokens += count + 1
            left[slot] -= count + 1
            if left[slot] <= 0:
                left[slot] = work.length
                policy.enter(slot)
    return tokens / elapsed


def static_rate(machine: Machine, batch: int, chances: Sequence[float], num_drafts: int) -> float:
    """Tokens per second to expect of a number of drafts that stays, each of `chances` for as many tokens."""
    slower = 1 + SLOW_ROUNDS * (sum(SLOWER) / 2 - 1)
    seconds = slower * machine.seconds(batch, batch * (num_drafts + 1), num_drafts)
    return len(chances) / sum(seconds / (batch * expected_tokens(chance, num_drafts)) for chance in chances)


def expected_tokens(chance: float, num_drafts: int) -> float:
    """Of one sequence's round, bonus token included."""
    return sum(chance**i for i in range(num_drafts + 1))


def auto(machine: Machine, max_drafts: int, batches: tuple[int, ...], *, seed: int = 0) -> AutoDraftLength:
    """The policy with what its timer would have measured at start-up."""
    rng = random.Random(seed)
    costs = RoundCosts(max_drafts)
    costs.learn(
        Timing(s, s * (k + 1), k, machine.seconds(s, s * (k + 1), k) * rng.gauss(1, 0.02))
        for s in batches
        for k in range(max_drafts + 1)
    )
    return AutoDraftLength(max_drafts, costs)
