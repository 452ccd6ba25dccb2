"""Estimates the acceptance length of a head: tokens committed per round, bonus token included.

Measured ones follow a constant chance p of each further draft within a few per cent (by position .62 .36 .20 .12 .06
for 120b at five drafts, vllm-project/vllm#42764), so a measurement at one number of drafts says what others would
give: 1 + p + ... + p^K. Between measured numbers of drafts p is interpolated. Along a chain p never rises: where a
longer one was measured to have a higher p, the text was an easier one, and the range spans both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eyas.base.synthetic import parse_acceptance
from eyas.recipes.plan import Choice, Range
from eyas.recipes.records import Acceptance, Head

__all__ = ["chance", "expected_acceptance", "length"]

UNMEASURED = {"eagle3": (0.55, 0.68), "draft-model": (0.60, 0.80)}  # chance of a draft; performance reference, 1c
WORKLOADS = {  # words in the workload of a measurement that suit a purpose
    "chat": ("chat", "mt-bench", "sharegpt"),
    "discord": ("chat", "mt-bench", "sharegpt"),
    "claude-code": ("coding", "humaneval"),
    "batch": (),
}
SINGLE_SPREAD = 0.05  # of the accepted drafts, around a measurement that stands alone
BEYOND_CONTEXT = (0.5, 0.85)  # what is left of the accepted drafts outside of the head's context; an estimate
FAR = 4  # times the head's longest context: positions that it never saw, and nothing to speak of is accepted
FAR_BEYOND = (0.0, 0.2)
BEYOND_DRAFTS = 0.3  # NVIDIA's throughput head: 1.72-1.84 with one draft, 1.25 with three


def length(p: float, draft_tokens: int) -> float:
    """Return the expected acceptance length where each further draft is accepted with rate p."""
    return sum(p**i for i in range(draft_tokens + 1))


def chance(acceptance_length: float, draft_tokens: int) -> float:
    """Find the p at which `length` is `acceptance_length`, by bisection; 0..1."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle, draft_tokens) < acceptance_length else (low, middle)
    return (low + high) / 2


def expected_acceptance(choice: Choice, head: Head, draft_tokens: int) -> Range:
    """Estimate 1..K+1 from the head's measurements, preferring those of the choice's engine and purpose."""
    if choice.has_random_weights:
        return _simulated(choice.simulate_acceptance, draft_tokens)
    most = head.max_draft_tokens or draft_tokens
    able = min(draft_tokens, most)
    usual = [one for one in head.acceptance if head.max_draft_tokens is None or one.draft_tokens <= most]
    low, high = _measured(_suiting(choice, usual), able) or _unmeasured(head, able)
    if able < draft_tokens:
        low = 1 + BEYOND_DRAFTS * (low - 1)
    shortest, longest = head.intended_context
    if not shortest <= choice.context <= longest:
        left = FAR_BEYOND if choice.context >= FAR * longest else BEYOND_CONTEXT
        low, high = 1 + left[0] * (low - 1), 1 + left[1] * (high - 1)
    return Range(low=low, high=min(high, draft_tokens + 1))


def _simulated(acceptance: str | None, draft_tokens: int) -> Range:
    """Return the length that is set for random weights; without that hardly a draft is accepted."""
    values = (0.0,) if acceptance is None else parse_acceptance(acceptance).values
    lengths = [length(value, draft_tokens) if value <= 1 else min(value, draft_tokens + 1) for value in values]
    mean = sum(lengths) / len(lengths)
    return Range(low=mean, high=mean)


def _suiting(choice: Choice, measured: Sequence[Acceptance]) -> Sequence[Acceptance]:
    """Select measurements of the choice's engine or of any, then at each number of drafts those of its purpose.

    A criterion is dropped where it leaves nothing.
    """
    same = [one for one in measured if one.engine in ("", choice.engine)] or measured
    words = WORKLOADS[choice.purpose]
    suiting = [one for one in same if any(word in one.workload.lower() for word in words)]
    covered = {one.draft_tokens for one in suiting}
    return [*suiting, *(one for one in same if one.draft_tokens not in covered)]


def _measured(measured: Sequence[Acceptance], draft_tokens: int) -> tuple[float, float] | None:
    if not measured:
        return None
    found: dict[int, list[float]] = {}
    for one in measured:
        found.setdefault(one.draft_tokens, []).append(chance(one.length, one.draft_tokens))
    lows = {k: min(p for drafts, chances in found.items() if drafts <= k for p in chances) for k in found}
    highs = {k: max(p for drafts, chances in found.items() if drafts >= k for p in chances) for k in found}
    low, high = _longest(lows, draft_tokens), _longest(highs, draft_tokens)
    if high - low < SINGLE_SPREAD * (high - 1):
        low, high = 1 + (1 - SINGLE_SPREAD) * (low - 1), 1 + (1 + SINGLE_SPREAD) * (high - 1)
    return low, high


def _longest(chances: Mapping[int, float], draft_tokens: int) -> float:
    """The best of all chains up to `draft_tokens`: of different texts a shorter chain may have a higher length."""
    return max(_between(chances, drafts) for drafts in range(1, draft_tokens + 1))


def _between(chances: Mapping[int, float], drafts: int) -> float:
    """Interpolate the length at `drafts`: its chance lies between those of the nearest measured, and it is not above
    that of the longer one.

    Beyond the ends the chance is that of the end.
    """
    below = max((known for known in chances if known <= drafts), default=min(chances))
    above = min((known for known in chances if known >= drafts), default=max(chances))
    if below >= above:
        return length(chances[above], drafts)
    p = chances[below] + (drafts - below) / (above - below) * (chances[above] - chances[below])
    return min(length(p, drafts), length(chances[above], above))


def _unmeasured(head: Head, draft_tokens: int) -> tuple[float, float]:
    low, high = UNMEASURED[head.kind]
    return length(low, draft_tokens), length(high, draft_tokens)
