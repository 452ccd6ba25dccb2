"""Tables of text for what the commands print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["table"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines of columns; those that are empty in all rows are left out."""
    kept = [at for at in range(len(head)) if any(row[at] for row in rows)] or [0]
    lines = [[row[at] for at in kept] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_lines(lines, widths))


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for row in rows:
        yield "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
