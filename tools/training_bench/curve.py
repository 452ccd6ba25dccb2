"""Draws memory and speed of training steps by length from lines that `eyas train bench --lines FILE` wrote.

    python -m tools.training_bench.curve RESULTS.jsonl [--out docs/images/training.svg]

One curve a mode, all tokens supervised: memory beyond weights, gradients and optimiser, and tokens a second. Where a
length stands on several lines the last counts, and one at which memory ran out is marked by a cross at the top.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

MODES = ("ours", "checkpoints", "hard", "plain")
COLORS = dict(zip(MODES, ("#1b7837", "#2166ac", "#d95f02", "#762a83"), strict=True))
GIB = 1 << 30


class Points(NamedTuple):
    """Of one mode: (tokens, bytes, tokens a second) by length, and lengths at which memory ran out."""

    measured: list[tuple[int, int, float]]
    out_of_memory: list[int]


def points(rows: list[dict[str, Any]]) -> tuple[dict[str, Points], str]:
    """Return the points by mode, and what was measured. Exits if nothing was, or not all in one place."""
    drawn = [row for row in rows if "modes" in row and row["supervised"] == 1 and not row["with_target"]]
    merged: dict[int, dict[str, Any]] = {}
    for row in drawn:
        kept = merged.setdefault(row["tokens"], {"modes": {}, "why_not": {}})
        kept["modes"] |= row["modes"]
        kept["why_not"] |= row["why_not"]
    places = {(row["shape"], row["hardware"]["device"], row["versions"]["torch"], row["dtype"]) for row in drawn}
    if len(places) != 1:
        raise SystemExit(f"the lines are of {len(places)} places: {sorted(places)}; give those of one")
    found = {}
    for mode in MODES:
        measured = [
            (tokens, row["modes"][mode]["peak_bytes"], row["modes"][mode]["tokens_per_s"]["median"])
            for tokens, row in sorted(merged.items())
            if mode in row["modes"]
        ]
        lost = [tokens for tokens, row in sorted(merged.items()) if row["why_not"].get(mode) == "out of memory"]
        if measured or lost:
            found[mode] = Points(measured, lost)
    ((shape, device, torch, dtype),) = places
    return found, f"head for {shape}, {dtype} products, {device}, torch {torch}; random data (SIMULATED)"


def draw(found: dict[str, Points], title: str, out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    memory, speed = figure.subplots(1, 2)
    lengths = sorted({n for one in found.values() for n in (*one.out_of_memory, *(x[0] for x in one.measured))})
    for mode, one in found.items():
        x = [point[0] for point in one.measured]
        style = {"label": mode, "color": COLORS[mode], "marker": "o", "markersize": 4, "linewidth": 1.4}
        memory.plot(x, [point[1] / GIB for point in one.measured], **style)
        speed.plot(x, [point[2] for point in one.measured], **style)
        for lost in one.out_of_memory[:1]:
            memory.plot([lost], [1], "x", color=COLORS[mode], transform=memory.get_xaxis_transform(), clip_on=False)
    for axes, label in ((memory, "GiB beyond weights, gradients, optimiser"), (speed, "tokens a second")):
        axes.set(xlabel="tokens of a document", ylabel=label, xscale="log")
        axes.set_yscale("log", base=2)
        axes.set_xticks(lengths, [f"{x / 1024:g}K" for x in lengths])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(alpha=0.3)
    memory.legend(fontsize="small")
    lost = "\nx: out of memory" if any(one.out_of_memory for one in found.values()) else ""
    figure.suptitle(title + lost, fontsize=9)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="files of lines")
parser.add_argument("--out", type=Path, default=Path("docs/images/training.svg"), metavar="FILE")


def main() -> None:
    args = parser.parse_args()
    rows = [json.loads(line) for path in args.results for line in path.read_text().splitlines()]
    found, title = points([row for row in rows if row.get("bench") == "train"])
    draw(found, title, args.out)


if __name__ == "__main__":
    main()
