"""Levels of pressure on a pool: utilisation and stalls are two signals, and the worse one counts."""

from __future__ import annotations

from typing import Literal, get_args

from eyas.router.memory.events import Reading
from eyas.router.settings.schema import MemorySettings

__all__ = ["LEVELS", "Level", "level_of"]

# warning: it is looked at every second. critical: nothing is loaded, and what is idle goes. emergency: all goes that is
# not pinned.
Level = Literal["normal", "warning", "critical", "emergency"]
LEVELS: tuple[Level, ...] = get_args(Level)
STALLED = 10.0  # percent of 10 s: `some` is critical, `full` an emergency


def level_of(reading: Reading, settings: MemorySettings) -> Level:
    """Return the level of a reading."""
    share = reading.used / reading.total if reading.total else 0.0
    if share >= settings.emergency or reading.full >= STALLED:
        return "emergency"
    if share >= settings.critical or reading.some >= STALLED:
        return "critical"
    return "warning" if share >= settings.warning else "normal"
