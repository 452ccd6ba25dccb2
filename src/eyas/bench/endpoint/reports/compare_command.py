"""`eyas bench compare`: what changed between two runs, with intervals, and what was not alike."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from eyas.bench.endpoint.records import Stamp
from eyas.bench.endpoint.reports.compare import FIGURES, Change, Difference, changes, differences
from eyas.bench.endpoint.reports.plots.elements import clean
from eyas.bench.endpoint.reports.run_file import load_run, warn_if_cut_short
from eyas.bench.endpoint.reports.summary import summary
from eyas.bench.report import print_json, table

__all__ = ["add_arguments", "run"]

HEADINGS = {name: heading for name, heading, _ in FIGURES}
NOTE = (
    "median over windows; ratio of geometric means, after over before, with its 95 % interval (Welch). Of 20 intervals "
    "about one misses 1 though nothing has changed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, metavar="BEFORE", help="file of a run, or its JSON report")
    parser.add_argument("after", type=Path, metavar="AFTER", help="file of the run to compare with it")


def run(args: argparse.Namespace) -> int:
    runs = [load_run(path) for path in (args.before, args.after)]
    for path in (args.before, args.after):
        warn_if_cut_short(path)
    found = changes(*map(summary, runs))
    unlike = differences(*runs)
    stamps = [one.header.stamp for one in runs]
    origins = [_origin(name, stamp) for name, stamp in zip(("before", "after"), stamps, strict=True)]
    lines = ["eyas bench compare", *origins, "", *_unlike_lines(unlike), "", *_table(found), "", NOTE, ""]
    print("\n".join(map(clean, lines)))
    print_json(
        {
            "bench": "compare",
            "files": [str(args.before), str(args.after)],
            "stamps": [msgspec.to_builtins(stamp) for stamp in stamps],
            "not_alike": [_json(one) for one in unlike if one.is_condition],
            "differs": [_json(one) for one in unlike if not one.is_condition],
            "changes": [_change_json(one) for one in found],
        }
    )
    return 0


def _origin(name: str, stamp: Stamp) -> str:
    """Return where a run comes from, and loudly what in it is not real."""
    simulated = f"SIMULATED ({stamp.simulated}), " if stamp.simulated else ""
    hardware = stamp.hardware or "the server's hardware is not known"
    return f"{name:<8}{simulated}{hardware}, {stamp.date}, eyas {stamp.eyas} (commit {stamp.commit or 'unknown'})"


def _unlike_lines(unlike: Sequence[Difference]) -> list[str]:
    lines = []
    if conditions := [one for one in unlike if one.is_condition]:
        lines.append("NOT ALIKE, so a change below need not be one of the engine:")
        lines += [f"  {one.name}: {one.before} / {one.after}" for one in conditions]
    if others := [one for one in unlike if not one.is_condition]:
        lines.append("What differs:")
        lines += [f"  {one.name}: {one.before} / {one.after}" for one in others]
    return lines or ["Nothing differs in how they were measured."]


def _table(found: Sequence[Change]) -> list[str]:
    rows = [
        [
            f"{one.arm}, {one.load.text()}",
            HEADINGS[one.figure],
            *(f"{_factor(one) * spread.median:,.4g}" for spread in (one.before, one.after)),
            one.ratio.text(3) if one.ratio is not None else "-",
            one.says,
        ]
        for one in found
    ]
    return table(["", "figure", "before", "after", "ratio [95 %]", ""], rows)


def _factor(one: Change) -> float:
    return 1000 if HEADINGS[one.figure].endswith(", ms") else 1


def _json(one: Difference) -> dict[str, Any]:
    return {"name": one.name, "before": one.before, "after": one.after}


def _change_json(one: Change) -> dict[str, Any]:
    return {
        "arm": one.arm,
        "load": msgspec.to_builtins(one.load),
        "figure": one.figure,
        "before": one.before.json(),
        "after": one.after.json(),
        "ratio": one.ratio.json() if one.ratio is not None else None,
        "says": one.says,
    }
