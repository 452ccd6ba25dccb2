"""Whether temperature, seed, top_p and top_k take effect, with false alarms below 1 in 1,000 for a sound server.

Equal answers prove nothing by themselves: a model may be sure of its answer. Given a first answer, another draw equals
it with the first one's own probability p, which the server's log-probabilities tell; k draws all do with p^k. So draws
go on until one differs (it takes effect), until p^k < CHANCE (it is ignored), or until MAX_DRAWS (not judged). p is
taken too large rather than too small: of a token's rivals only those count that usual filters leave in. Without
log-probabilities MAX_DRAWS answers must be the same, which is chance only if the model gives that answer more than half
of the time.

That greedy answers or a repeated seed give other text is no proof either: many engines round differently from batch to
batch. Ignored is what gives NUM_REPEATS answers of which no two are the same. Where rounding changes 1 answer in 10, at
least five of six are changed with a probability of 6 x 0.9 x 0.1^5 + 0.1^6 = 0.00006.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from eyas.bench.check.asking import Answer, Endpoint
from eyas.bench.check.finding import Refused, Request, Result, broken, ok, unclear

__all__ = ["CHANCE", "draws_needed", "log_chance", "sampling"]

CHANCE = 2.5e-4  # of either of two comparisons; with four kinds of repeats below 0.001 altogether
MAX_DRAWS = 12  # 0.5 to the power of 12 is below CHANCE
NUM_REPEATS = 6
LENGTH = 64  # tokens
HOT = 1.5
TOP = 5  # rivals that are asked for
KEPT = 0.1  # of the best token's probability: what has as much is left in by usual filters (min-p is 0.05)
WITHOUT = (("top_p", 1),)
WITH = (*WITHOUT, ("logprobs", True), ("top_logprobs", TOP))
PROMPTS = (
    "Invent a short story about a lighthouse, in a style of your own.",
    "Write twenty random words.",
    "List random numbers between 1 and 1000.",
)


def log_chance(entries: Iterable[dict[str, Any]]) -> float:
    """Return an upper bound of the log-probability of an answer at temperature 1, from its tokens' entries.

    A token counts as log(p / (p + rivals)), rivals being the listed others with at least KEPT of the largest p.
    """
    total = 0.0
    for entry in entries:
        own = float(entry["logprob"])
        listed = [top for top in entry.get("top_logprobs") or () if top.get("token") != entry.get("token")]
        others = [float(top["logprob"]) for top in listed]
        best = max((own, *others))
        kept = sum(math.exp(other - best) for other in others if other >= best + math.log(KEPT))
        total += own - best - math.log(math.exp(own - best) + kept)
    return total


def draws_needed(log_p: float | None) -> int | None:
    """Return how many draws must all equal an answer before chance is ruled out; None: more than MAX_DRAWS."""
    if log_p is None:
        return MAX_DRAWS
    if log_p >= 0:
        return None
    draws = max(1, math.ceil(math.log(CHANCE) / log_p))
    return draws if draws <= MAX_DRAWS else None


@dataclass(slots=True)
class _Sampler:
    """Draws answers to one prompt, as it is chosen by `choose`."""

    endpoint: Endpoint
    prompt: str = PROMPTS[0]
    fields: tuple[tuple[str, Any], ...] = WITH

    async def draw(self, temperature: float, seed: int, **fields: Any) -> Answer:
        given = dict(self.fields) | {"temperature": temperature, "seed": seed} | fields
        try:
            return await self.endpoint.chat(self.prompt, max_tokens=LENGTH, **given)
        except Refused:
            if fields or self.fields == WITHOUT:
                raise
        self.fields = WITHOUT  # it may be the log-probabilities that are refused
        return await self.draw(temperature, seed)

    async def choose(self, seed: int) -> Answer:
        """Take the prompt whose answer at temperature 1 is the least certain, and return that answer."""
        found: list[tuple[float, str, Answer]] = []
        for self.prompt in PROMPTS:
            answer = await self.draw(1, seed)
            log_p = _log_p(answer)
            found.append((log_p or 0.0, self.prompt, answer))
            if log_p is None or draws_needed(log_p) == 1:
                break
        _, self.prompt, first = min(found, key=lambda item: item[0])
        return first

    async def is_varied(self, text: str, log_p: float | None, temperature: float, seeds: Iterable[int]) -> bool | None:
        """Return whether draws differ from `text`, whose bound is `log_p`; None: chance cannot be ruled out."""
        needed = draws_needed(log_p)
        for number, seed in enumerate(seeds, start=1):
            if (await self.draw(temperature, seed)).text != text:
                return True
            if needed is not None and number >= needed:
                return False
        return None

    async def is_fixed(self, temperature: float, seeds: Iterable[int], **fields: Any) -> tuple[bool, Answer]:
        """Return whether two of the draws are the same, and that answer."""
        seen: dict[str, Answer] = {}
        for seed in seeds:
            answer = await self.draw(temperature, seed, **fields)
            if answer.text in seen:
                return True, answer
            seen[answer.text] = answer
        return False, answer


def _log_p(answer: Answer) -> float | None:
    """Return the bound for an answer; None where the server does not say it."""
    try:
        return log_chance(answer.logprobs) if answer.logprobs else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


async def sampling(endpoint: Endpoint) -> Result:
    """Draw answers at temperatures 0, 1 and HOT, and name each field that changes nothing."""
    sampler = _Sampler(endpoint)
    base = secrets.randbelow(1 << 30)
    many = [base + number for number in range(1, MAX_DRAWS + 1)]
    await sampler.draw(0, base)  # the prompt is in the cache from here on: no answer is read by other kernels
    first = await sampler.choose(base)
    if not first.text.strip():
        return unclear(f"no text within {LENGTH} tokens")
    ignored: dict[str, Request | None] = {}
    is_greedy, greedy = await sampler.is_fixed(0, many[:NUM_REPEATS])
    if not is_greedy:
        ignored["temperature"] = endpoint.last  # answers at 0 differ from seed to seed
    seeds_differ = await sampler.is_varied(first.text, _log_p(first), 1, many)
    asked = endpoint.last
    # Heat makes the most likely tokens less likely, so the bound at temperature 1 holds for it, too. Some servers say
    # log-probabilities after the temperature, which at 0 are all 0: those of the same text at 1 are better.
    log_p = _log_p(first if first.text == greedy.text else greedy)
    heat_differs = await sampler.is_varied(greedy.text, log_p, HOT, many) if is_greedy else True
    if heat_differs is False:
        ignored["temperature"] = endpoint.last
        why = f"temperature is ignored: {HOT:g} answers as 0 does, so that nothing is seen of the seed"
        return broken(why, ignored["temperature"])
    if seeds_differ is False:
        ignored["seed"] = asked
    elif seeds_differ and not (await sampler.is_fixed(1, [base] * NUM_REPEATS))[0]:
        ignored["seed"] = endpoint.last
    unknown = []
    if heat_differs and is_greedy:
        for name, value in (("top_p", 1e-4), ("top_k", 1)):
            try:
                if not (await sampler.is_fixed(HOT, many[:NUM_REPEATS], **{name: value}))[0]:
                    ignored[name] = endpoint.last
            except Refused:
                unknown.append(name)
    if ignored:
        return broken(f"ignored: {', '.join(ignored)}", next(iter(ignored.values())))
    if heat_differs is None or seeds_differ is None:
        return unclear("this model is too sure of its answers to tell draws from greedy ones")
    return ok(f"temperature, seed, top_p{'' if unknown else ', top_k'} take effect{_lacking(unknown)}")


def _lacking(names: list[str]) -> str:
    return f"; {', '.join(names)} is refused" if names else ""
