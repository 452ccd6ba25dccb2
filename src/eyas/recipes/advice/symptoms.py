"""Explains the log of an engine by the symptoms of `data/symptoms.yaml` and the known issues.

A log is untrusted and may be huge: only its beginning and end are read, and patterns repeat nothing without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from msgspec import Struct

from eyas.base.serving.engines import EngineName
from eyas.recipes.advice.issues import known_issues
from eyas.recipes.knowledge.tables import DATA, read
from eyas.recipes.records import Record

__all__ = ["Finding", "Symptom", "explain", "symptoms"]

HEAD_CHARS = 512 * 1024  # the first error is the cause, the last one the end; what lies between repeats
TAIL_CHARS = 1536 * 1024
LINE_CHARS = 300

ESCAPES = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
SECRETS = re.compile(r"(?:\bhf_|\bnvapi-|\bsk-|[Bb]earer |api[-_]key[=: ]{1,2})[^\s,;'\"]{8,}")


class Symptom(Record, frozen=True, kw_only=True):
    """Meaning of a line of a log. `patterns` are regular expressions for it; no `engines`: every engine's log."""

    engines: tuple[EngineName, ...] = ()
    patterns: tuple[str, ...]
    meaning: str
    remedy: str


class Finding(Struct, frozen=True, kw_only=True):
    """A finding in a log. `name` is that of the symptom or issue, `line` where it shows first, keys masked."""

    name: str
    line: str
    pattern: str
    meaning: str
    remedy: str
    sources: tuple[str, ...]
    issue: str | None = None


class _Known(Struct, frozen=True, kw_only=True):
    """A symptom or an issue, ready to be looked for."""

    name: str
    engines: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    meaning: str
    remedy: str
    sources: tuple[str, ...]
    issue: str | None = None


@cache
def symptoms() -> tuple[Symptom, ...]:
    """Return all symptoms that are not known issues of one engine."""
    return tuple(read(DATA / "symptoms.yaml", Symptom).values())


def explain(log: str, engine: str | None = None) -> tuple[Finding, ...]:
    """Return what is known about the lines of `log`, in order, each symptom once; of one line the issues come first.

    `engine` is the one that wrote it; None looks for those of every engine. Of a log above 2 MiB the first 512 KiB and
    the last 1.5 MiB are read.
    """
    text = _readable(log)
    found: list[tuple[int, Finding]] = []
    for known in _known():
        if engine is not None and known.engines and engine not in known.engines:
            continue
        places = [match for pattern in known.patterns if (match := pattern.search(text)) is not None]
        if places:
            first = min(places, key=lambda match: match.start())
            line = text.rfind("\n", 0, first.start()) + 1
            found.append((line, _finding(known, first, text)))
    return tuple(finding for _, finding in sorted(found, key=lambda pair: pair[0]))


@cache
def _known() -> tuple[_Known, ...]:
    return (*_from_issues(), *_from_symptoms())


def _from_issues() -> Iterator[_Known]:
    for issue in known_issues():
        yield _Known(
            name=issue.name,
            engines=issue.engines,
            patterns=tuple(re.compile(pattern) for pattern in issue.log_patterns),
            meaning=f"{issue.trigger}: {issue.symptom}",
            remedy=issue.workaround,
            sources=issue.sources,
            issue=issue.name,
        )


def _from_symptoms() -> Iterator[_Known]:
    for symptom in symptoms():
        yield _Known(
            name=symptom.name,
            engines=symptom.engines,
            patterns=tuple(re.compile(pattern) for pattern in symptom.patterns),
            meaning=symptom.meaning,
            remedy=symptom.remedy,
            sources=symptom.sources,
        )


def _readable(log: str) -> str:
    if len(log) > HEAD_CHARS + TAIL_CHARS:
        log = log[:HEAD_CHARS] + "\n" + log[-TAIL_CHARS:]
    log = ESCAPES.sub("", log).replace("\r", "\n")  # progress bars return to the start of their line
    return SECRETS.sub("(hidden)", log)


def _finding(known: _Known, match: re.Match[str], text: str) -> Finding:
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line = text[max(start, match.start() - LINE_CHARS) : end if end >= 0 else None]
    return Finding(
        name=known.name,
        line=line[: 2 * LINE_CHARS].strip(),
        pattern=match.re.pattern,
        meaning=known.meaning,
        remedy=known.remedy,
        sources=known.sources,
        issue=known.issue,
    )
