"""Known issues of engines: the plans they apply to, what happens, what to do. The data is `data/issues.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Literal

from eyas.base.serving.engines import EngineName
from eyas.recipes.advice.facts import Facts, When, matches
from eyas.recipes.knowledge.tables import DATA, read
from eyas.recipes.records import Record

__all__ = ["Issue", "applies", "known_issues", "matching"]


class Issue(Record, frozen=True, kw_only=True):
    """A known issue. `affected` says in words what the predicates of `when` say in ranges; any of them may hold.

    `effect`: a plan to which a "forbid" applies would not start or would give wrong output; "warn" may hurt it;
    "note" is worth knowing. `confidence`: high where a maintainer or the source says so, medium where it was only read
    in code or reported once, low where it is second hand. `log_patterns` are regular expressions for one log line.
    """

    engines: tuple[EngineName, ...]
    severity: Literal["critical", "high", "medium", "performance", "behaviour", "config"]
    affected: str
    fixed_in: str | None
    when: tuple[When, ...]
    effect: Literal["forbid", "warn", "note"]
    trigger: str
    symptom: str
    workaround: str
    confidence: Literal["high", "medium", "low"]
    log_patterns: tuple[str, ...] = ()


@cache
def known_issues() -> tuple[Issue, ...]:
    """Return all known issues, in the order of the file: by engine."""
    return tuple(read(DATA / "issues.yaml", Issue).values())


def applies(issue: Issue, facts: Facts) -> bool:
    """Whether `issue` applies to what `facts` describe."""
    return facts.engine in issue.engines and any(matches(when, facts) for when in issue.when)


def matching(facts: Facts) -> tuple[Issue, ...]:
    """Return the known issues that apply, those that forbid first."""
    found = [issue for issue in known_issues() if applies(issue, facts)]
    return tuple(sorted(found, key=lambda issue: ("forbid", "warn", "note").index(issue.effect)))
