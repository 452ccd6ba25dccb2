"""Words of a plan as words of sh: quoted so that every byte arrives as it is, references left to the shell.

A secret stays a reference ("$NAME"); a home directory is that of the node where the script runs ("$HOME"/...).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from itertools import pairwise

from eyas.recipes.plan import Home, Ref, Word

__all__ = ["below", "heredoc", "is_name", "names_of", "script_line", "shell"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
LINE = 110  # characters, before a command is broken into several lines


def is_name(text: str) -> bool:
    """Whether `text` can name an environment variable in sh."""
    return NAME.fullmatch(text) is not None


def shell(*parts: Word) -> str:
    """One word of sh whose value is `parts` one after another. ValueError for NUL and for names that sh cannot have."""
    return "".join(_part(part) for part in parts if part != "") or "''"


def _part(part: Word) -> str:
    if isinstance(part, Ref):
        if not is_name(part.name):
            raise ValueError(f"{part.name!r} cannot name an environment variable")
        return f'"${part.name}"'
    if isinstance(part, Home):
        return '"$HOME"' + ("/" + shell(part.path) if part.path else "")
    if "\0" in part:
        raise ValueError("a word cannot hold a NUL byte")
    if ASSIGNMENT.match(part):  # at the front of a command it would set a variable
        return "'" + part.replace("'", "'\"'\"'") + "'"
    return shlex.quote(part)


def below(folder: Word, path: str) -> Word:
    """The word for `path` inside `folder`. ValueError where `folder` is a reference."""
    if isinstance(folder, Ref):
        raise ValueError(f"a folder cannot be given as a reference: {folder.name}")
    if isinstance(folder, Home):
        return Home(path=f"{folder.path}/{path}" if folder.path else path)
    return f"{folder.rstrip('/')}/{path}"


def names_of(words: Iterable[Word]) -> tuple[str, ...]:
    """The environment variables that `words` refer to, each once."""
    return tuple(dict.fromkeys(word.name for word in words if isinstance(word, Ref)))


def script_line(words: Iterable[str], indent: str = "") -> str:
    """A command of already quoted words, a flag with its value on each line where it is long."""
    words = list(words)
    flat = indent + " ".join(words)
    if len(flat) <= LINE and "\n" not in flat:
        return flat
    lines, current = [], words[0]
    for before, word in pairwise(words):
        if word.startswith("-") or not before.startswith("-"):
            lines.append(current)
            current = word
        else:
            current += " " + word
    lines.append(current)
    return indent + f" \\\n{indent}  ".join(lines)


def heredoc(command: str, content: str, word: str = "EOF") -> str:
    """`command` with `content` on its stdin, to the byte. `content` must be whole lines; else ValueError."""
    if "\0" in content or not content.endswith("\n"):
        raise ValueError("a here-document holds whole lines without NUL bytes")
    lines = set(content.split("\n"))
    while word in lines:
        word += "_"
    return f"{command} <<'{word}'\n{content}{word}\n"
