"""Tables of the options that each published version of an engine accepts, so that no other is emitted.

The tables are `recipes/data/flags/ENGINE/VERSION.txt`, one option per line, made by `tools/engine_flags.py` from the
argument parsers of the published packages. A version without a table is held to the nearest one below it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib.resources import files

from eyas.recipes.plan import Word
from eyas.recipes.versions import compare

__all__ = ["check", "known_versions", "options"]

TABLES = files("eyas.recipes") / "data" / "flags"


@functools.cache
def known_versions(engine: str) -> tuple[str, ...]:
    """Return the versions with a table, oldest first; empty for an engine without tables."""
    folder = TABLES / engine
    if not folder.is_dir():
        return ()
    names = (entry.name.removesuffix(".txt") for entry in folder.iterdir())
    return tuple(sorted(names, key=functools.cmp_to_key(compare)))


@functools.cache
def options(engine: str, version: str) -> frozenset[str]:
    """Return the options of `version`. Raises ValueError where no table is at or below it."""
    known = [name for name in known_versions(engine) if compare(name, version) <= 0]
    if not known:
        raise ValueError(f"no table of the options of {engine} {version}")
    lines = (TABLES / engine / f"{known[-1]}.txt").read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line.startswith("-"))


def check(engine: str, version: str, argv: Iterable[Word]) -> None:
    """Raise ValueError for the first option in `argv` that `version` lacks; prefixes of options do not count."""
    known = options(engine, version)
    for word in argv:
        if isinstance(word, str) and re.match(r"-{1,2}[A-Za-z]", word) and word.partition("=")[0] not in known:
            raise ValueError(f"{engine} {version} has no option {word.partition('=')[0]}")
