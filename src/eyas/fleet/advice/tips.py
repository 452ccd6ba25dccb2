"""The conditions under which a tuning rule is worth saying about a server that runs. Pure.

A tip is said only where its condition was seen, and shows what was seen; its text and sources are those of the rule of
the same name in `eyas.recipes` (`data/tuning.yaml`). What cannot be looked at is said to be so, never guessed. Most are
the checklist of the corti.com guide (section 9) and its note on prefix caching (section 8b).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from eyas.base.units import readable
from eyas.fleet.advice.copies import Copy, several
from eyas.fleet.machines.machine import Machine
from eyas.recipes.advice.facts import Facts, matches
from eyas.recipes.advice.tuning import Rule, rules
from eyas.recipes.knowledge.tables import knowledge

__all__ = ["PAGE_CACHE", "TIPS", "Advice", "Prompts", "Reuse", "Seen", "Tip", "advice", "unseen"]

PAGE_CACHE = 0.7  # of the memory that could be had must be free without asking the page cache
MIN_REQUESTS = 20  # before their longest prompt says what the context is used for
USED_SHARE = 0.25  # of the context; a longer prompt uses it
MIN_CACHED = 0.5  # of a prompt whose first line alone is new


class Reuse(Struct, frozen=True, kw_only=True):
    """Cached tokens of a prompt that was sent again as it was, and with another attribution line; and all of them."""

    same: int
    other_line: int
    total: int


class Prompts(Struct, frozen=True, kw_only=True):
    """Requests that a server has answered since its start, and a bound of their longest prompt in tokens."""

    count: int
    longest: float


class Seen(Struct, frozen=True, kw_only=True):
    """State of a server, and of its machine where it is this one, as far as it was seen; None is what cannot be.

    `facts` describe the server as the rules of recipes want it.
    """

    context: int | None = None
    prompts: Prompts | None = None
    reuse: Reuse | None = None
    facts: Facts | None = None
    machine: Machine | None = None
    copies: tuple[Copy, ...] | None = None
    argv: tuple[str, ...] | None = None


class Tip(NamedTuple):
    """A rule by its name, what its condition returns of what it saw, and whether it looks at the machine."""

    rule: str
    evidence: Callable[[Seen], str | None]
    of_machine: bool = True


class Advice(Struct, frozen=True, kw_only=True):
    """A tip whose condition holds: what to do, what was seen, who says so."""

    name: str
    text: str
    evidence: str
    source: str


def _context(seen: Seen) -> str | None:
    """Context that no prompt comes near, on memory that it shares with everything else."""
    context, prompts = seen.context, seen.prompts
    if context is None or prompts is None or not _applies("context-is-the-lever", seen):
        return None
    if prompts.count < MIN_REQUESTS or prompts.longest > USED_SHARE * context:
        return None
    return (
        f"a context of {context:,} tokens; the longest of {prompts.count:,} prompts had at most {prompts.longest:,.0f}"
    )


def _dense(seen: Seen) -> str | None:
    if seen.facts is None or not _applies("stay-on-moe", seen):
        return None
    model = knowledge().models[seen.facts.model]
    return f"{model.title} reads all of its {readable(model.total_bytes)} for each token, at {_bandwidth(seen.facts)}"


def _mapped(seen: Seen) -> str | None:
    if seen.argv is None or not _applies("no-mmap", seen):
        return None
    return f"{seen.argv[0].rpartition('/')[2]} runs without --no-mmap"


def _swap(seen: Seen) -> str | None:
    if seen.machine is None or not _applies("enable-swap", seen):
        return None
    return f"SwapTotal is 0, with {readable(seen.machine.memory_bytes)} for CPU and GPU together"


def _several(seen: Seen) -> str | None:
    many = several(seen.copies or ())
    shown = [
        f"{name}: {', '.join(copy.name for copy in group)} ({readable(sum(copy.num_bytes for copy in group))})"
        for name, group in many.items()
    ]
    return "; ".join(shown) or None


def _attribution(seen: Seen) -> str | None:
    reuse = seen.reuse
    if reuse is None or reuse.same < MIN_CACHED * reuse.total or reuse.other_line >= MIN_CACHED * reuse.same:
        return None
    return (
        f"{reuse.same:,} of {reuse.total:,} tokens of a repeated prompt came from the cache, {reuse.other_line:,} with "
        "another attribution line"
    )


def _page_cache(seen: Seen) -> str | None:
    machine = seen.machine
    if machine is None or not machine.is_unified or machine.free_bytes >= PAGE_CACHE * machine.available_bytes:
        return None
    cached = readable(machine.available_bytes - machine.free_bytes)
    return f"{cached} of page cache count as used for the GPU, {readable(machine.free_bytes)} are free"


def _bandwidth(facts: Facts) -> str:
    return f"{facts.bandwidth / 1e9:,.0f} GB/s"


def _applies(rule: str, seen: Seen) -> bool:
    return seen.facts is not None and any(matches(when, seen.facts) for when in _rules()[rule].when)


def _rules() -> dict[str, Rule]:
    return {rule.name: rule for rule in rules()}


TIPS = (
    Tip("context-is-the-lever", _context),
    Tip("stay-on-moe", _dense),
    Tip("no-mmap", _mapped),
    Tip("enable-swap", _swap),
    Tip("one-engine-one-quant", _several),
    Tip("claude-code-prefix-cache", _attribution, of_machine=False),
    Tip("drop-caches", _page_cache),
)


def advice(seen: Seen) -> tuple[Advice, ...]:
    """Return the tips whose conditions were seen to hold."""
    found = []
    for tip in TIPS:
        if (evidence := tip.evidence(seen)) is not None:
            rule = _rules()[tip.rule]
            source = "; ".join(rule.sources)
            found.append(Advice(name=tip.rule, text=rule.text.strip(), evidence=evidence, source=source))
    return tuple(found)


def unseen(seen: Seen) -> tuple[str, ...]:
    """Return the names of the tips whose conditions cannot be looked at from here."""
    if seen.machine is not None:
        return ()
    return tuple(tip.rule for tip in TIPS if tip.of_machine)
