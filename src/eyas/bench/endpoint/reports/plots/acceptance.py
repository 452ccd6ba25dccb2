"""Acceptance of drafts: by their position in a round, and by the number that a round accepted."""

from __future__ import annotations

from eyas.bench.endpoint.records import Counts
from eyas.bench.endpoint.reports.plots.frame import ABOVE, Figure, Plot, Point, series_class
from eyas.bench.endpoint.reports.plots.scales import levels, linear
from eyas.bench.endpoint.reports.summary import Summary
from eyas.client.endpoint.acceptance.counts import accepted_of_rounds, accepted_of_tested, total

__all__ = ["by_position", "counts_of_arms", "histogram"]

NOT_OFFERED = "The servers offer no counts of this kind."


def counts_of_arms(summary: Summary) -> dict[int, tuple[str, Counts]]:
    """Return the counts of each arm that drafts, over all its loads, by the arm's number."""
    found = {}
    for index, arm in enumerate(summary.arms):
        cells = [cell.counts for (name, _), cell in summary.cells.items() if name == arm and cell.counts is not None]
        counts = total(cells)
        if counts is not None and counts.accepted + (counts.drafted or 0):
            found[index] = (arm, counts)
    return found


def by_position(summary: Summary) -> Figure:
    """Draw the share of rounds that accepted each draft: of all, and of those that had accepted the draft before."""
    title = "Acceptance by position of the draft"
    arms = {i: (arm, c) for i, (arm, c) in counts_of_arms(summary).items() if c.by_position}
    if not arms:
        return Figure(name="by-position", title=title, svg=None, note=NOT_OFFERED)
    num_positions = max(len(counts.by_position or ()) for _, counts in arms.values())
    plot = Plot(
        title,
        levels("position of the draft", [str(position) for position in range(1, num_positions + 1)]),
        linear("accepted, %", [100.0]),
    )
    for index, (arm, counts) in arms.items():
        of_rounds = [(i, 100 * share) for i, share in enumerate(accepted_of_rounds(counts))]
        of_tested = [(i, 100 * share) for i, share in enumerate(accepted_of_tested(counts)) if share is not None]
        plot.line(index, of_tested, style="dashed")
        plot.line(index, of_rounds)
        kinds = ((of_tested, "rounds that accepted the one before", True), (of_rounds, "all rounds", False))
        for points, words, is_hollow in kinds:
            marks = [
                Point(x=i, y=share, is_hollow=is_hollow, text=f"{arm}, draft {i + 1}: {share:.1f} % of {words}")
                for i, share in points
            ]
            plot.points(index, marks)
        for i, share in of_rounds:
            plot.label(i, share, f"{share:.0f}", classes=series_class(index))
        for i, share in of_tested[1:]:
            plot.label(i, share, f"{share:.0f}", classes=series_class(index))
    note = "Filled: of all rounds. Hollow, dashed: of the rounds that had accepted the draft before."
    series = tuple((index, arm) for index, (arm, _) in arms.items())
    return Figure(name="by-position", title=title, svg=plot.svg(), note=note, series=series)


def histogram(summary: Summary) -> Figure:
    """Draw the share of rounds by the number of drafts that they accepted."""
    title = "Drafts accepted in a round"
    arms = {i: (arm, c) for i, (arm, c) in counts_of_arms(summary).items() if c.histogram and sum(c.histogram)}
    if not arms:
        return Figure(name="histogram", title=title, svg=None, note=NOT_OFFERED)
    num_levels = max(len(counts.histogram or ()) for _, counts in arms.values())
    shares = {
        index: [100 * n / sum(counts.histogram or ()) for n in counts.histogram or ()]
        for index, (_, counts) in arms.items()
    }
    plot = Plot(
        title,
        levels("drafts accepted (the round commits one token more)", [str(k) for k in range(num_levels)]),
        linear("rounds, %", [share for one in shares.values() for share in one]),
    )
    group = 0.8 * (plot.right - plot.left) / num_levels
    width = min(28.0, group / len(arms))
    for order, (index, (arm, counts)) in enumerate(arms.items()):
        shift = (order - len(arms) / 2) * width
        for k, share in enumerate(shares[index]):
            rounds, top = (counts.histogram or ())[k], plot.y(share)
            text = f"{arm}: {rounds:,} rounds of {counts.rounds:,} accepted {k} drafts, {share:.1f} %"
            plot.bar(index, text, x=plot.x(k) + shift, y=top, width=width - 1.5, height=plot.bottom - top)
            plot.label(k, share, f"{share:.0f}", shift=shift + width / 2, classes=series_class(index), offsets=[ABOVE])
    lengths = [f"{arm} {length:.2f}" for arm, counts in arms.values() if (length := counts.length) is not None]
    note = f"Acceptance length, tokens that a round commits, its own included: {', '.join(lengths)}."
    series = tuple((index, arm) for index, (arm, _) in arms.items())
    return Figure(name="histogram", title=title, svg=plot.svg(), note=note, series=series)
