"""Measures how long a process has made no progress while it could run.

Wall time cannot tell: a laptop sleeps, a cgroup freezes or throttles, a user stops a process. A process that could run
has used processor time: an idle interpreter uses some at every beat of its heartbeat thread, and every 5 ms while that
thread waits for the interpreter's lock. The time between two looks counts if processor time has advanced, and at most
as MAX_GAP_S, so that neither a pause of the process nor one of the observer counts.
"""

from __future__ import annotations

import ctypes
import time

__all__ = ["MAX_GAP_S", "StallClock", "processor_seconds"]

MAX_GAP_S = 1.0  # looks come every 0.25 s and heartbeats every 0.5 s; longer gaps are pauses


class StallClock:
    """Clock of one process. `stalled_s`: time without progress while it could run; `paused_s`: since it last ran."""

    def __init__(self, now: float) -> None:
        self.stalled_s = self.paused_s = 0.0
        self._last_look = now
        self._used = 0.0

    def progressed(self) -> None:
        """Note progress: `stalled_s` restarts from 0."""
        self.stalled_s = 0.0

    def look(self, now: float, used: float, *, is_behind: bool = False) -> None:
        """Update at CLOCK_MONOTONIC `now` with `used`, the processor time of the process, in seconds.

        `is_behind`: there may be progress that was not read yet, so the time does not count.
        """
        self.paused_s += min(now - self._last_look, MAX_GAP_S)
        self._last_look = now
        if used != self._used:
            if not is_behind:
                self.stalled_s += min(self.paused_s, MAX_GAP_S)
            self._used, self.paused_s = used, 0.0


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process; where it is unknown, a clock that always advances."""
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) == 0:
        try:
            return time.clock_gettime(clock.value)
        except OSError:
            pass  # it has just ended
    return time.monotonic()
