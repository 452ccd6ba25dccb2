"""Compares the speed model with published figures, every third held out, and writes the table into docs/plan.md.

`python -m tools.speed_record`. A figure that is held out is read neither by the fit (`speed_fit.py`) nor by any
estimate here. Figures that are set apart (another build, hardware or unit that is not stated) move nothing and are
compared all the same. One row holds out each third in its turn, with a fit and widths of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import exp
from pathlib import Path
from statistics import median

from msgspec import Struct
from tools.speed_fit import Fitted, choice_of, every, fit_to, held_out, kept, set_apart, set_length, thirds

from eyas.recipes.estimate.published import Figure, alike
from eyas.recipes.estimate.speed import decoding
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Range

__all__ = ["Compared", "compared", "page", "rotated"]

PAGE = Path(__file__).parents[1] / "docs" / "plan.md"
BEGIN, END = "<!-- record: python -m tools.speed_record -->", "<!-- end of record -->"
COLUMNS = (
    "figures",
    "number",
    "inside the range",
    "median error of its middle",
    "median width (high over low)",
    "width where others of that engine and box are published",
)


class Compared(Struct, frozen=True, kw_only=True):
    """A published figure beside the range that is printed for its setting."""

    figure: Figure
    has_others: bool  # whether other figures of that engine on that box are published and not held out
    within: Range

    @property
    def is_inside(self) -> bool:
        return self.within.low <= self.figure.tokens_per_second <= self.within.high

    @property
    def error(self) -> float:
        middle = (self.within.low * self.within.high) ** 0.5
        return abs(middle / self.figure.tokens_per_second - 1)

    @property
    def width(self) -> float:
        return self.within.high / self.within.low


def compared(some: Iterable[Figure], known: Sequence[Figure]) -> Iterator[Compared]:
    """Yield figures with the planner's range where only `known` ones are."""
    tables = knowledge()
    for one in some:
        choice, box = choice_of(one), parse_box(one.hardware)
        head = tables.heads[one.head] if one.head else None
        others = [other for other in known if other != one]
        yield Compared(
            figure=one,
            has_others=bool(alike(choice, box, others)),
            within=decoding(choice, box, tables.models[one.model], head, one.context, known, length=set_length(one)),
        )


@cache
def rotated() -> tuple[Compared, ...]:
    """Return every figure with the range of a fit to the two thirds that it is not in."""
    return tuple(_rotated())


def _rotated() -> Iterator[Compared]:
    fitted = Fitted(every())
    for left_out in thirds():
        rest = [one for one in every() if one not in left_out]
        found = fit_to(rest)
        for one in left_out:
            has_others = bool(alike(choice_of(one), parse_box(one.hardware), rest))
            widths = found.drafted if one.draft_tokens else found.plain
            width = widths.published if has_others else widths.nothing
            middle = one.tokens_per_second / exp(fitted.residual(one, left_out))
            yield Compared(figure=one, has_others=has_others, within=Range(low=middle / width, high=middle * width))


def _row(title: str, rows: Sequence[Compared]) -> str:
    published = [row.width for row in rows if row.has_others]
    inside = sum(row.is_inside for row in rows)
    widths = f"{median(row.width for row in rows):.2f} | {f'{median(published):.2f}' if published else '-'}"
    error = f"{100 * median(row.error for row in rows):.0f} %"
    return f"| {title} | {len(rows)} | {inside} ({100 * inside // len(rows)} %) | {error} | {widths} |"


def page(text: str) -> str:
    """Return the page `text` with the table as it is now."""
    known, left_out, apart = kept(), list(compared(held_out(), kept())), set_apart()
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---|---|---|---|",
        _row("fitted", list(compared(known, known))),
        _row("held out", left_out),
        _row("held out, without drafts", [row for row in left_out if not row.figure.draft_tokens]),
        _row("held out, with drafts", [row for row in left_out if row.figure.draft_tokens]),
        _row("each third held out in its turn", rotated()),
        _row("set apart", list(compared(apart, known))),
    ]
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.partition(END)[2]}"


def _print(title: str, rows: Iterable[Compared]) -> None:
    print(title)
    for row in rows:
        one, sign = row.figure, " " if row.is_inside else "!"
        name = f"{one.model} {one.hardware} {one.engine} {one.head} {one.draft_tokens} at {one.concurrency}"
        print(f"{sign} {name:<66} {one.tokens_per_second:8.1f} {row.within.low:8.1f}..{row.within.high:<8.1f}")


if __name__ == "__main__":
    for title, some in (("fitted", kept()), ("held out", held_out()), ("set apart", set_apart())):
        _print(title, compared(some, kept()))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
