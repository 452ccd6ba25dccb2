"""The table of the study of lengths: acceptance length of both arms by context and by distance, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.length_study.accuracy import bucket_name

from eyas.bench.report import table
from eyas.bench.stats import Interval, ratio_difference

__all__ = ["BEHIND", "Row", "figures", "lines", "rows_of"]

AHEAD_FROM = 2  # the bucket that begins at 1,024 tokens
BEHIND = -0.05  # acceptance length that the long arm may be behind anywhere

Pairs = list[tuple[float, float]]  # tokens and rounds of each prompt
Row = tuple[int, int, int, Interval, Interval, Interval]  # bucket, seeds, prompts, short, long, long over short


def rows_of(results: Mapping[str, Mapping[int, Any]], kind: str) -> list[Row]:
    """Return a row for each bucket in which every head that is compared has rounds.

    Seeds are those that both arms have. A prompt in whose bucket a head has no round is left out for all of them.
    """
    seeds = sorted(set(results.get("short", {})) & set(results.get("long", {})))
    if not seeds:
        return []
    found = []
    for bucket in range(len(results["short"][seeds[0]][kind])):
        heads = {arm: [results[arm][seed][kind][bucket] for seed in seeds] for arm in ("short", "long")}
        everyone = [*heads["short"], *heads["long"]]
        kept = [i for i in range(len(everyone[0])) if all(head[i][1] for head in everyone)]
        if not kept:
            continue
        short, long = ([[tuple(head[i]) for i in kept] for head in heads[arm]] for arm in ("short", "long"))
        lengths = (ratio_difference(short), ratio_difference(long), ratio_difference(long, short))
        found.append((bucket, len(seeds), len(kept), *lengths))
    return found


def holds(rows: Sequence[Row]) -> dict[str, bool]:
    """Return whether the long arm is ahead where it should be, and behind nowhere, each with its interval."""
    far = [row for row in rows if row[0] >= AHEAD_FROM]
    return {
        "ahead_beyond_1K": bool(far) and all(row[-1].low > 0 for row in far),
        "nowhere_behind": bool(rows) and all(row[-1].low > BEHIND for row in rows),
    }


def figures(results: Mapping[str, Mapping[int, Any]]) -> dict[str, Any]:
    """Return the fields of the JSON."""
    by_kind = {kind: rows_of(results, kind) for kind in ("context", "distance")}
    names = ("short", "long", "long_over_short")
    return {
        **{
            kind: {
                bucket_name(row[0]): {
                    "seeds": row[1], "prompts": row[2],
                    **{name: interval.json() for name, interval in zip(names, row[3:], strict=True)},
                }
                for row in rows
            }
            for kind, rows in by_kind.items()
        },
        **holds(by_kind["context"]),
    }  # fmt: skip


def lines(results: Mapping[str, Mapping[int, Any]]) -> list[str]:
    """Return the tables and the verdict, for people."""
    found = ["acceptance length [95 %, bootstrap over seeds and prompts]; long - short: same seeds and prompts"]
    for kind in ("context", "distance"):
        cells = [
            [bucket_name(row[0]), str(row[1]), str(row[2]), *(interval.text(3) for interval in row[3:])]
            for row in rows_of(results, kind)
        ]
        found += ["", *table([kind, "seeds", "prompts", "short", "long", "long - short"], cells)]
    verdict = holds(rows_of(results, "context"))
    return [*found, "", *(f"{name.replace('_', ' ')}: {'holds' if yes else 'FAILS'}" for name, yes in verdict.items())]
