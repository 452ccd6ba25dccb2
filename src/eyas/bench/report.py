"""Output shared by all benchmarks: provenance, aligned tables, one JSON line last."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import eyas
from eyas.base.commit import commit
from eyas.base.settings.config import argument, int_from

__all__ = [
    "SIMULATED",
    "SIMULATED_ACCEPTANCE",
    "existing_file",
    "listed",
    "positive_int",
    "print_json",
    "provenance",
    "table",
]

SIMULATED = "SIMULATED: the weights are random, so times are real but acceptance is that of chance"
SIMULATED_ACCEPTANCE = (
    "SIMULATED: synthetic acceptance, draft tokens are random and accepted at a set rate; times are real"
)


class Machine(Protocol):
    """The machine that was measured; `num_threads` are those that compute, `load` the load average before the start."""

    @property
    def device(self) -> str: ...
    @property
    def num_cores(self) -> int: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def load(self) -> float: ...


def provenance(machine: Machine, *, libraries: Sequence[str] = ("torch",)) -> tuple[list[str], dict[str, Any]]:
    """Return lines for people and fields for the JSON: machine and versions."""
    versions = {
        "eyas": eyas.__version__,
        "commit": commit(),
        **{name: version(name) for name in libraries},
        "python": platform.python_version(),
    }
    hardware = {
        "device": machine.device,
        "cores": machine.num_cores,
        "threads": machine.num_threads,
        "load": round(machine.load, 2),
    }
    lines = [
        f"hardware  {machine.device}, {_count(machine.num_cores, 'core')}, "
        f"{_count(machine.num_threads, 'compute thread')}; load average before the start {machine.load:.1f}",
        f"versions  eyas {versions['eyas']} (commit {versions['commit'] or 'unknown'}), "
        f"{', '.join(f'{name} {versions[name]}' for name in libraries)}, Python {versions['python']}",
    ]
    return lines, {"hardware": hardware, "versions": versions}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format lines with right-aligned columns under `head`."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1 for argparse."""
    return argument(int_from(1))(text)


def existing_file(text: str) -> Path:
    """Parse a path for argparse, so that a wrong one is an error before a model is loaded."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return Path(text)


def listed(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return a parser for argparse of comma-separated values, each kept once."""
    return argument(lambda text: tuple(dict.fromkeys(parse(item.strip()) for item in text.split(","))))
