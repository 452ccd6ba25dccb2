"""Checks of long prompts: 20,000 tokens, and whether a prompt's beginning is computed again. Without a tokenizer.

The server's own counts of two short prompts tell the tokens of a line; prompts are made of as many as are wanted.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import dataclass
from statistics import median

from eyas.bench.check.asking import Endpoint
from eyas.bench.check.finding import Refused, Result, broken, missing, ok

__all__ = ["long_prompt", "prefix_reuse"]

LONG = 20_000  # tokens
SHORT_OF_IT = 0.8  # of a smaller context
REUSED = 1_500  # tokens: more than the blocks that engines cache
LIMIT_S = 1800.0  # of an answer to it, on a CPU as well
FEW, MORE = 20, 60  # lines of the prompts that are counted
GUESS = 13.0  # tokens a line where nothing is counted, with the vocabulary of gpt-oss
CUT = 0.9  # of the size, below which a server has not read all of it
MIN_CACHED = 0.5  # of a repeated prompt; engines cache whole blocks, and leave out its end
NUM_COUNTED = 3
NUM_TIMED = 10  # all repeats are faster by chance in 2^-10 of cases
FASTER = 0.8
COLOURS = ("amber", "teal", "ochre", "indigo", "scarlet", "ivory", "olive", "cobalt")


@dataclass(frozen=True, slots=True)
class _Sizes:
    per_line: float
    base: float
    is_counted: bool

    def lines(self, tokens: int) -> int:
        return max(1, round((tokens - self.base) / self.per_line))


def _text(num_lines: int, seed: str) -> tuple[str, int, str]:
    """Return a text whose first line no server has seen, and the number and content of the line to ask for."""
    rng = random.Random(seed)
    numbers = [rng.randrange(1_000, 10_000) for _ in range(num_lines)]
    lines = [
        f"Line {number}: the {rng.choice(COLOURS)} crate holds {count} nails.\n"
        for number, count in enumerate(numbers, start=1)
    ]
    at = num_lines // 3
    return f"Inventory {seed}.\n{''.join(lines)}How many nails does line {at + 1} name?", at + 1, str(numbers[at])


async def _sizes(endpoint: Endpoint) -> _Sizes:
    counts = []
    for num_lines in (FEW, MORE):
        text, _, _ = _text(num_lines, secrets.token_hex(8))
        answer = await endpoint.chat(text, max_tokens=1)
        counts.append(answer.usage.prompt_tokens if answer.usage else 0)
    few, more = counts
    per_line = (more - few) / (MORE - FEW)
    if few <= 0 or per_line < 1:
        return _Sizes(GUESS, 0.0, False)
    return _Sizes(per_line, few - FEW * per_line, True)


async def long_prompt(endpoint: Endpoint) -> Result:
    """Send LONG tokens, or most of a smaller context, and look for a fact of their first half in the answer."""
    sizes = await _sizes(endpoint)
    fits = endpoint.context is None or endpoint.context >= LONG / SHORT_OF_IT
    target = LONG if fits else int(SHORT_OF_IT * (endpoint.context or 0))
    text, line, number = _text(sizes.lines(target), secrets.token_hex(8))
    budget = 256 if fits else min(256, (endpoint.context or 0) - target - 16)
    try:
        answer = await endpoint.chat(text, max_tokens=max(1, budget), temperature=0, limit_s=LIMIT_S)
    except Refused as error:
        return missing(f"a prompt of about {target:,} tokens is refused: {error}")
    counted = answer.usage.prompt_tokens if answer.usage else None
    if sizes.is_counted and counted is not None and counted < CUT * target:
        return broken(f"a prompt of about {target:,} tokens is cut in silence: {counted:,} of them were read")
    size = f"{counted:,}" if counted else f"about {target:,}"
    found = f"finds line {line} in it" if number in answer.text.replace(",", "") else "answers"
    if not fits:
        return missing(f"the context of {endpoint.context:,} is less than {LONG:,} tokens; at {size} it {found}")
    return ok(f"{size} tokens: it {found}")


async def prefix_reuse(endpoint: Endpoint) -> Result:
    """Send new prompts twice each: by counts of cached tokens, or by time where the server counts none."""
    sizes = await _sizes(endpoint)
    target = REUSED if endpoint.context is None else min(REUSED, endpoint.context // 2)
    pairs: list[tuple[_Asked, _Asked]] = []
    while len(pairs) < NUM_TIMED:
        text, _, _ = _text(sizes.lines(target), secrets.token_hex(8))
        pairs.append((await _asked(endpoint, text), await _asked(endpoint, text)))
        if len(pairs) == NUM_COUNTED and all(again.cached is not None and again.prompt for _, again in pairs):
            return _by_counts(pairs)
    ratios = [again.seconds / new.seconds for new, again in pairs]
    faster = sum(ratio < 1 for ratio in ratios)
    times = f"{faster} of {NUM_TIMED} repeats were faster, median ratio {median(ratios):.2f}"
    if faster == NUM_TIMED and median(ratios) < FASTER:
        return ok(f"by time ({times})")
    return missing(f"not seen: no cached tokens are counted, and {times}")


@dataclass(frozen=True, slots=True)
class _Asked:
    """Seconds of an answer of one token, tokens of its prompt and those that came from the cache, as it says."""

    seconds: float
    cached: int | None
    prompt: int | None

    @property
    def share(self) -> float:
        """The cached share of the prompt."""
        return (self.cached or 0) / (self.prompt or 1)


def _by_counts(pairs: list[tuple[_Asked, _Asked]]) -> Result:
    """Judge by the median pair: another client's requests may push a prompt out of the cache."""
    new, again = (
        sorted((pair[place] for pair in pairs), key=lambda one: one.share)[len(pairs) // 2] for place in (0, 1)
    )
    said = f"{again.cached:,} of {again.prompt:,} tokens of a repeated prompt came from the cache"
    if max(new.share, again.share) > 1:
        return broken(f"more tokens are counted as cached than a prompt has: {again.cached} of {again.prompt}")
    if new.share > MIN_CACHED:
        return broken(f"{new.cached} of {new.prompt} tokens are counted as cached of a prompt that is new")
    return ok(said) if again.share >= MIN_CACHED else missing(said)


async def _asked(endpoint: Endpoint, text: str) -> _Asked:
    loop = asyncio.get_running_loop()
    began = loop.time()
    usage = (await endpoint.chat(text, max_tokens=1)).usage
    seconds = loop.time() - began
    return _Asked(seconds, usage.cached_tokens if usage else None, usage.prompt_tokens if usage else None)
