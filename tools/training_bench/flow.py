"""Runs the parts of a bench one after the other within a time: each a process with a limit of its own.

One that fails, or is stopped, stops no other. How each ended stands in DIR/results.jsonl, a line each, and what was
printed in DIR/log.txt, so that a flow that is killed loses nothing but the part in progress. Parts come in order of
their worth.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Part", "add_options", "run_flow", "run_part"]

LEAST = 15  # seconds that a part is begun with


@dataclass(frozen=True, slots=True)
class Part:
    """`command` is for this Python; `seconds` is what it may take at most."""

    name: str
    command: tuple[str, ...]
    seconds: int


def add_options(parser: argparse.ArgumentParser, flows: Mapping[str, tuple[Part, ...]], folder: str) -> None:
    """Add the flow, where its results go, its time and its parts."""
    parser.add_argument("flow", choices=tuple(flows))
    parser.add_argument("--out", type=Path, default=Path(folder), metavar="DIR", help=f"results (default: {folder})")
    parser.add_argument("--minutes", type=float, default=9.0, metavar="N", help="in which the flow ends (default: 9)")
    parser.add_argument("--parts", metavar="LIST", help="names of parts, separated by commas (default: all)")


def run_flow(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    parts: tuple[Part, ...],
    command_of: Callable[[Part], tuple[str, ...]] = lambda part: part.command,
) -> None:
    """Run the parts that were asked for, as far as the time goes, by their commands or others."""
    deadline = time.monotonic() + 60 * args.minutes
    if args.parts:
        names = args.parts.split(",")
        if unknown := set(names) - {part.name for part in parts}:
            parser.error(f"no part {', '.join(sorted(unknown))}; parts are {', '.join(part.name for part in parts)}")
        parts = tuple(part for part in parts if part.name in names)
    args.out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        left = deadline - time.monotonic()
        if left < LEAST:
            ended: dict[str, object] = {"part": part.name, "ended": "not begun: the time is up"}
        else:
            ended = run_part(part, command_of(part), args.out, min(part.seconds, left))
        with (args.out / "results.jsonl").open("a") as lines:
            lines.write(json.dumps(ended) + "\n")
        print(json.dumps(ended), flush=True)


def run_part(part: Part, command: tuple[str, ...], folder: Path, limit: float) -> dict[str, object]:
    """Run a part in a process group of its own, and return how it ended."""
    began = time.monotonic()
    with (folder / "log.txt").open("ab") as log:
        log.write(f"== {part.name}: {' '.join(command)}\n".encode())
        log.flush()
        running = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, start_new_session=True)
        try:
            ended = str(running.wait(limit))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            ended = "stopped at its limit"
    return {"part": part.name, "ended": ended, "seconds": round(time.monotonic() - began, 1)}
