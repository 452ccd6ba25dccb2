"""Tuning advice as rules that fire on a plan. The rules and their sources are in `data/tuning.yaml`."""

from __future__ import annotations

from functools import cache

from eyas.recipes.advice.facts import Facts, When, matches
from eyas.recipes.knowledge.tables import DATA, read
from eyas.recipes.plan import Note
from eyas.recipes.records import Record

__all__ = ["Rule", "advice", "rules"]


class Rule(Record, frozen=True, kw_only=True):
    """A rule whose `text` is worth saying where any of `when` holds."""

    when: tuple[When, ...]
    text: str


@cache
def rules() -> tuple[Rule, ...]:
    """Return all rules, the most useful first."""
    return tuple(read(DATA / "tuning.yaml", Rule).values())


def advice(facts: Facts) -> tuple[Note, ...]:
    """Return the advice of the rules that fire on this plan; `issue` of a note is the name of its rule."""
    return tuple(
        Note(text=rule.text, source="; ".join(rule.sources), issue=rule.name)
        for rule in rules()
        if any(matches(when, facts) for when in rule.when)
    )
