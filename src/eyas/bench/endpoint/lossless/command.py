"""`eyas bench endpoint --lossless`: compares the answers of the first two arms in place of putting load on them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from eyas.base.errors import UserError
from eyas.bench.endpoint.load.session import Side
from eyas.bench.endpoint.lossless.run import NEAR_TIE, TOKENS, compare
from eyas.bench.endpoint.lossless.summary import Losslessness, Result
from eyas.bench.endpoint.prompts.prompt import Prompt
from eyas.bench.endpoint.records import Stamp
from eyas.bench.machine import machine
from eyas.bench.report import positive_int, print_json, provenance

__all__ = ["add_lossless_flags", "run_lossless"]

CONCURRENCY = 4


def add_lossless_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--lossless", nargs="?", type=positive_int, const=TOKENS, metavar="TOKENS",
        help="put no load on, but compare answers of the first two arms, one without speculation, one with: greedily "
        f"and with seeds, until at least TOKENS of them count (default: {TOKENS:,})",
    )  # fmt: skip
    add(
        "--near-tie", type=_gap, default=NEAR_TIE, metavar="GAP",
        help="with --lossless: the most that the log-probabilities of two tokens may be apart for a difference to be a "
        f"near tie, not a defect (default: {NEAR_TIE})",
    )  # fmt: skip


def run_lossless(args: argparse.Namespace, sides: Sequence[Side], prompts: Sequence[Prompt], stamp: Stamp) -> int:
    """Compare, print, and keep the result in --out. Return 1 for defects. Raises UserError."""
    if len(sides) < 2:
        raise UserError("--lossless compares two endpoints; give the one without speculation first, then the other")
    if args.out is not None and args.out.exists():
        raise UserError(f"{args.out} is there already; name another file")
    base, other = ((side.arm, side.endpoint) for side in sides[:2])
    concurrency = args.concurrency[0] if args.concurrency else CONCURRENCY
    lines, origin = provenance(machine(), libraries=("httpx",))
    arms = [f"{side.arm.name}: {side.endpoint.text()}" for side in sides[:2]]
    print("\n".join(["eyas bench endpoint --lossless", *lines, *arms]), flush=True)
    latest: list[Losslessness] = []

    def keep(found: Losslessness) -> None:
        latest[:] = [found]
        if sys.stderr.isatty():
            done = found.greedy.num_tokens + found.seeded.num_tokens
            print(f"\r{done:,} tokens compared", end="", file=sys.stderr, flush=True)

    try:
        found = asyncio.run(
            compare(
                base,
                other,
                prompts,
                tokens=args.lossless,
                max_tokens=args.max_tokens,
                near_tie=args.near_tie,
                concurrency=concurrency,
                timeout_s=args.timeout,
                on_change=keep,
            )
        )
    except KeyboardInterrupt:
        if not latest:
            return 130
        found = msgspec.structs.replace(latest[0], ended="interrupted")
    print(
        "\n".join(["", *found.lines(), f"{concurrency} questions at once, at most {args.max_tokens} tokens each", ""])
    )
    _keep(args.out, Result(stamp=stamp, lossless=found))
    print_json({"bench": "endpoint lossless", **origin, **msgspec.to_builtins(Result(stamp=stamp, lossless=found))})
    return 1 if found.greedy.count("defect") + found.seeded.count("defect") else 0


def _keep(path: Path | None, result: Result) -> None:
    if path is None:
        return
    try:
        path.write_bytes(msgspec.json.encode(result) + b"\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def _gap(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"wants a difference of log-probabilities such as 0.25, got {text}")
    return value
