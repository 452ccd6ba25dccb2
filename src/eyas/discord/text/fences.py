"""Code fences of Markdown: which one is open after a line, and the lines that close it and open it again.

A fence is three or more backticks or tildes at the start of a line, behind any marks of quotes and lists and at any
indentation: Discord looks at neither, and models indent fences as they like. It ends with a line of at least as many of
the same sign (https://spec.commonmark.org/0.31.2/#fenced-code-blocks), or where the quote that it stands in ends.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Fence", "fence_after", "may_be_fence"]

MARKS = r"(?:[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])(?=[ \t])))*[ \t]*"
OPENING = re.compile(rf"({MARKS})(`{{3,}}(?=[^`]*$)|~{{3,}})([^\n]*)")
START = re.compile(rf"{MARKS}(?:`{{3}}|~{{3}}|(?:`{{0,2}}|~{{0,2}}|[-*+]|\d{{1,9}}[.)]?)$)")
LIST_MARK = re.compile(r"[-*+]|\d{1,9}[.)]")
MAX_INDENT = 3  # of a fence outside of lists: with more it would be indented code


class Fence(NamedTuple):
    """An open fence. `prefix` stands before each of its lines: marks of quotes, and blanks in place of list marks."""

    prefix: str
    marker: str
    info: str

    @property
    def opening(self) -> str:
        """The line that opens it again, with its end."""
        return f"{self.prefix}{self.marker}{self.info}\n"

    @property
    def closing(self) -> str:
        """The line that closes it, without an end."""
        return f"{self.prefix}{self.marker}"

    @property
    def depth(self) -> int:
        """The number of quotes around it."""
        return self.prefix.count(">")

    def continued(self) -> Fence:
        """Return the fence as it goes on in another message, where the list that it stood in is not open."""
        bare = self.prefix.lstrip(" ")
        return self._replace(prefix=" " * min(MAX_INDENT, len(self.prefix) - len(bare)) + bare)

    def has(self, line: str) -> bool:
        """Return whether a line is within the quotes around it."""
        return re.match(rf"(?:[ \t]*>){{{self.depth}}}", line) is not None

    def is_closed_by(self, line: str) -> bool:
        """Return whether a line closes it."""
        pattern = rf"(?:[ \t]*>){{{self.depth}}}[ \t]*{self.marker[0]}{{{len(self.marker)},}}[ \t\r]*"
        return re.fullmatch(pattern, line) is not None


def fence_after(fence: Fence | None, line: str) -> Fence | None:
    """Return the fence that is open after a line (without its end), seen as if nothing followed."""
    if fence is not None and fence.has(line):
        return None if fence.is_closed_by(line) else fence
    match = OPENING.fullmatch(line.rstrip("\r"))
    if match is None:
        return None
    prefix = LIST_MARK.sub(lambda mark: " " * len(mark[0]), match[1].expandtabs(4))
    return Fence(prefix, match[2], match[3].rstrip())


def may_be_fence(line: str) -> bool:
    """Return whether a line opens or closes a fence, or may do so when it goes on."""
    return START.match(line) is not None
