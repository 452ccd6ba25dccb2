"""Converts words of a plan to words of sh: quoted so that every byte arrives as it is, references left to the shell.

A secret stays a reference ("$NAME"); a home directory is that of the node where the script runs ("$HOME"/...).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from itertools import pairwise
from string import ascii_letters

from eyas.recipes.plan import EnvVar, Home, Ref, Word

__all__ = ["assignments", "heredoc", "is_name", "names_of", "script_line", "shell", "slug"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
LINE = 110  # characters, before a command is broken into several lines


def is_name(text: str) -> bool:
    """Whether `text` can name an environment variable in sh."""
    return NAME.fullmatch(text) is not None


def shell(*parts: Word) -> str:
    """Write a word of sh whose value is `parts` in sequence. ValueError for NUL and for names that sh cannot have.

    A word of one part may stand at the front of a command: it is never taken for an assignment.
    """
    if len(parts) == 1 and isinstance(parts[0], str) and ASSIGNMENT.match(parts[0]):
        return "'" + _literal(parts[0]).replace("'", "'\"'\"'") + "'"
    return "".join(_part(part) for part in parts if part != "") or "''"


def _part(part: Word) -> str:
    if isinstance(part, Ref):
        if not is_name(part.name):
            raise ValueError(f"{part.name!r} cannot name an environment variable")
        return f'"${part.name}"'
    if isinstance(part, Home):
        return '"$HOME"' + ("/" + shlex.quote(_literal(part.path)) if part.path else "")
    return shlex.quote(_literal(part))


def _literal(text: str) -> str:
    if "\0" in text:
        raise ValueError("a word cannot hold a NUL byte")
    return text


def assignments(env: Iterable[EnvVar]) -> list[str]:
    """Write `NAME=value` for each variable, to stand before a command.

    References come first: they mean the outer values. One to its own name needs no assignment.
    """
    words: dict[bool, list[str]] = {True: [], False: []}
    for variable in env:
        if not is_name(variable.name):
            raise ValueError(f"{variable.name!r} cannot name an environment variable")
        if variable.value != Ref(name=variable.name):
            words[isinstance(variable.value, Ref)].append(f"{variable.name}={shell(variable.value)}")
    return [*words[True], *words[False]]


def names_of(words: Iterable[Word]) -> tuple[str, ...]:
    """Return the environment variables that `words` refer to, each once."""
    return tuple(dict.fromkeys(word.name for word in words if isinstance(word, Ref)))


def script_line(words: Iterable[str], indent: str = "") -> str:
    """Write a command of already quoted words, a flag with its value on each line where it is long."""
    words = list(words)
    flat = indent + " ".join(words)
    if len(flat) <= LINE and "\n" not in flat:
        return flat
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    lines, current = [], " ".join(words[:first])
    for before, word in pairwise(words[first - 1 :] if first else ["", *words]):
        if word.startswith("-") or not before.startswith("-"):
            lines.append(current)
            current = word
        else:
            current += " " + word
    lines.append(current)
    return indent + f" \\\n{indent}  ".join(lines)


def slug(text: str) -> str:
    """Turn `text` into the name of a file, a unit or a job."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)


def heredoc(command: str, content: str, word: str = "EOF") -> str:
    """Write `command` with `content` on its stdin, to the byte. `content` must be whole lines; else ValueError.

    dash 0.5.12 loses a byte of a line that begins like the delimiter and goes on beyond ASCII, so no such line may
    share the delimiter's first letter.
    """
    if "\0" in content or not content.endswith("\n"):
        raise ValueError("a here-document holds whole lines without NUL bytes")
    lines = set(content.split("\n"))
    firsts = {line[:1] for line in lines if not line.isascii()}
    first = next((letter for letter in word[0] + ascii_letters if letter not in firsts), None)
    if first is None:
        return f"printf %s {shell(content)} | {command}\n"
    if first != word[0]:
        word = first + word
    while word in lines:
        word += "_"
    return f"{command} <<'{word}'\n{content}{word}\n"
