"""Boxes by name: `spark`, `2xspark`, `8xb200`, `rtx-pro-6000`. A box that is here is probed by `fleet`, not named."""

from __future__ import annotations

import re

from eyas.base.errors import UserError
from eyas.recipes.knowledge.tables import find, knowledge
from eyas.recipes.plan import Box
from eyas.recipes.records import Hardware

__all__ = ["box_of", "parse_box"]

_COUNTED = re.compile(r"(?:(\d{1,4})\s*x\s*)?(\S.*)")


def parse_box(text: str) -> Box:
    """Return the box that `text` names, `NxNAME` or `NAME`; names and aliases in any case, blanks as hyphens.

    Raises UserError for a name that is not in the table, and for a count that does not exist.
    """
    match = _COUNTED.fullmatch(text.strip().lower())
    name = "-".join(match[2].split()) if match else ""
    hardware = find(knowledge().hardware, name, "hardware")
    count = int(match[1] or 1) if match else 1
    if count not in hardware.counts:
        boxes = ", ".join(_name(n, hardware) for n in hardware.counts)
        raise UserError(f"there is no box of {count} x {hardware.name}; there are {boxes}")
    return box_of(hardware, count)


def box_of(hardware: Hardware, count: int = 1) -> Box:
    """`count` GPUs of `hardware`, in as few machines as hold them."""
    nodes = -(-count // hardware.gpus_per_node)
    return Box(
        name=_name(count, hardware),
        hardware=hardware,
        architecture=hardware.architectures[0],
        nodes=nodes,
        gpus=count // nodes,
    )


def _name(count: int, hardware: Hardware) -> str:
    return hardware.name if count == 1 else f"{count}x{hardware.name}"
