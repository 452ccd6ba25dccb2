"""Versions of engines: their order and ranges such as ">=0.5.6,<0.5.10".

Known forms: PEP 440 (`1.3.0rc12`, `0.11.1rc7.dev41`), tags (`v0.33.0-rc2`), months of NVIDIA's images
(`26.05.post1`) and builds of llama.cpp (`b10158`), older than its numbered versions, which began with 0.1.0 in August
2026. A build tag such as `+cu130` does not count.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache

from packaging.version import InvalidVersion, Version

from eyas.base.errors import UserError

__all__ = ["compare", "satisfies"]

_BUILD = re.compile(r"b(\d+)(-[0-9a-f]+)?")  # llama.cpp: the number of its commit, and the commit
_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*(\S+)")
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def compare(a: str, b: str) -> int:
    """-1, 0 or 1 as version `a` is older than, the same as or newer than `b`. UserError where one is no version."""
    first, second = _parsed(a), _parsed(b)
    return (first > second) - (first < second)


def satisfies(version: str, spec: str) -> bool:
    """Whether `version` lies in `spec`: comparisons joined by commas, all of which must hold; "" and "*" are any.

    Plain order, pre-releases included: `1.3.0rc12` is in `<1.3.0`, although installers would not offer it there.
    Raises UserError where the version is none, ValueError where the range is none.
    """
    if spec.strip() in ("", "*"):
        return True
    return all(_holds(version, clause.strip()) for clause in spec.split(","))


def _holds(version: str, clause: str) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise ValueError(f"'{clause}' is not a range of versions; write e.g. '>=0.5.6,<0.5.10'")
    return _OPERATORS[match[1]](compare(version, match[2]), 0)


@lru_cache(maxsize=1024)
def _parsed(version: str) -> Version:
    build = _BUILD.fullmatch(version.strip())
    try:
        parsed = Version(f"0.0.{build[1]}" if build else version)
    except InvalidVersion:
        raise UserError(f"'{version}' is not a version; write e.g. 0.5.23, 1.3.0rc12 or b10488") from None
    return Version(parsed.public)
