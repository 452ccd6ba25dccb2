"""Runs one sh script that asks a machine many things at once; its output comes back by section."""

from __future__ import annotations

from eyas.fleet.machines.node import NodeRunner

__all__ = ["ask"]

MARK = "%%%"
PRELUDE = f"""
section() {{ printf '\\n%s %s\\n' '{MARK}' "$1"; }}
asked() {{ timeout 20 "$@" 2>&1; printf '\\nexit %s\\n' "$?"; }}
"""


def ask(node: NodeRunner, script: str, *, timeout_s: float) -> dict[str, str]:
    """Return what `script` prints after each `section NAME`. `asked COMMAND` prints a command's output and exit code.

    Raises NodeError: the machine cannot be reached.
    """
    sections = {}
    for part in node.run(PRELUDE + script, timeout_s=timeout_s).out.split(f"\n{MARK} ")[1:]:
        name, _, text = part.partition("\n")
        sections[name] = text.strip("\n")
    return sections
