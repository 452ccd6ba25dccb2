"""`eyas doctor`: shows what this machine is, what would fit on it and what is missing, on one screen."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec

from eyas.base.units import readable
from eyas.fleet.commands.checkup import Checkup, Fit, examine
from eyas.fleet.machines.machine import Machine
from eyas.fleet.machines.node import LocalNode
from eyas.recipes.plan import Box

__all__ = ["add_arguments", "run"]

SMALL = ("demo",)  # of no use but to try eyas


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure memory bandwidth by reading GPU memory for a second (needs torch with CUDA)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    found = examine(LocalNode(), is_measured=args.measure)
    if args.json:
        print(msgspec.json.encode(found).decode())
        return 0
    sections = [
        ("This machine", list(_machine(found))),
        ("What would fit (best engine for one conversation; speeds are expected, not measured)", list(_fits(found))),
        ("What is missing", list(_missing(found))),
        ("Next", list(_next(found))),
    ]
    print("\n\n".join("\n".join((title, *(f"  {line}" for line in lines))) for title, lines in sections if lines))
    return 0


def _machine(found: Checkup) -> Iterator[str]:
    """Yield a name and what is known of it, line by line."""
    machine, box = found.machine, found.box
    facts = {
        "GPU": _gpus(machine),
        "memory": _memory(machine),
        "bandwidth": _bandwidth(box, found.bandwidth) if box is not None and machine.gpus else "",
        "CPU": ", ".join(filter(None, (machine.architecture, machine.firmware))),
        "disk": f"{readable(machine.disk_free_bytes)} free at {machine.disk_path}",
        "docker": machine.docker.version + ", with GPUs" * machine.docker.has_gpus or machine.docker.state,
        "link": _link(machine),
        "engines": ", ".join(f"{name} {version}".strip() for name, version in found.engines.items()),
        "note": " ".join(advice for advice in (box.hardware.advice if box else ()) if "not in the table" in advice),
    }
    yield from (f"{name:<10}{text}" for name, text in facts.items() if text)


def _gpus(machine: Machine) -> str:
    if not machine.gpus:
        return "none that can be used"
    gpu = machine.gpus[0]
    count = f"{len(machine.gpus)} x " if len(machine.gpus) > 1 else ""
    links = f", linked by {' and '.join(machine.links)}" if machine.links else ""
    return f"{count}{gpu.name}, compute capability {gpu.compute_capability}{links}, driver {gpu.driver}"


def _memory(machine: Machine) -> str:
    available = f"{readable(machine.memory_bytes)}, {readable(machine.available_bytes)} available"
    if not machine.gpus:
        return available
    if machine.is_unified:
        swap = f", {readable(machine.swap_bytes)} of swap" if machine.swap_bytes else ", no swap"
        return f"{available}, for CPU and GPU together{swap}"
    least = min(gpu.free_bytes or 0 for gpu in machine.gpus)
    each = " each" if len(machine.gpus) > 1 else ""
    return f"{readable(machine.gpus[0].usable_bytes or 0)}{each}, {readable(least)} free; next to it {available}"


def _bandwidth(box: Box, measured: float | None) -> str:
    by_datasheet = f"{box.hardware.bandwidth / 1e9:,.0f} GB/s by its datasheet"
    if measured is not None:
        return f"{measured / 1e9:,.0f} GB/s measured just now, {by_datasheet}"
    return f"{by_datasheet}; eyas doctor --measure measures it"


def _link(machine: Machine) -> str:
    """The fast ports between two Sparks, where there are such."""
    if not any(interface.rdma is not None for interface in machine.interfaces):
        return ""
    return f"{' and '.join(machine.port_pair)} up" if machine.port_pair else "no cable in the fast ports"


def _fits(found: Checkup) -> Iterator[str]:
    rows = [("model", "engine", "drafts", "context up to", "tok/s"), *(_row(fit) for fit in found.fits)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows if found.fits else ():
        yield "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
    if found.too_large and found.fits:
        yield f"too large: {', '.join(found.too_large)}"


def _row(fit: Fit) -> tuple[str, ...]:
    speed = f"{_number(fit.tokens_per_second.low)}..{_number(fit.tokens_per_second.high)}"
    drafts = f"{fit.draft_tokens} of {fit.head}" if fit.head else "none"
    return fit.model, fit.engine, drafts, f"{fit.max_context:,}", speed


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _missing(found: Checkup) -> Iterator[str]:
    for item in found.missing:
        yield f"- {item.message}; {item.next_step}"
    if not found.missing:
        yield "nothing"


def _next(found: Checkup) -> Iterator[str]:
    large = [fit.model for fit in found.fits if fit.model not in SMALL] if found.machine.gpus else []
    steps = {
        f"eyas plan {large[0]}": "what would be started, and why",
        f"eyas up {large[0]}": "start it",
    } if large else {
        "eyas serve": "try it here: the demo model",
        "eyas plan gpt-oss-120b --on spark": "plan for another machine",
    }  # fmt: skip
    yield from (f"{command:<36}{text}" for command, text in steps.items())
