"""How long a process has made no progress, in time during which it could run.

Wall time is no measure of that: a laptop sleeps, a cgroup freezes or throttles, a person stops a process. A process
that could run has used processor time: an idle interpreter with a heartbeat thread does so at every beat, and one whose
heartbeat waits for the interpreter's lock every 5 ms. The time between two looks counts if the processor time has
advanced, and never as more than MAX_GAP_S, so that neither a pause of the process nor one of the observer counts.
"""

from __future__ import annotations

import ctypes
import time

__all__ = ["MAX_GAP_S", "StallClock", "processor_seconds"]

MAX_GAP_S = 1.0  # looks come every 0.25 s and heartbeats every 0.5 s; in a longer gap something stood still


class StallClock:
    """For one process. `stalled_s`: without progress while it could run; `paused_s`: since it was last seen to run."""

    def __init__(self, now: float) -> None:
        self.stalled_s = self.paused_s = 0.0
        self._last_look = now
        self._used = 0.0

    def progressed(self) -> None:
        """Count from 0."""
        self.stalled_s = 0.0

    def look(self, now: float, used: float, *, is_behind: bool = False) -> None:
        """`now` is CLOCK_MONOTONIC, `used` the processor time of the process, in seconds.

        `is_behind`: there may have been progress that is not known yet, so that the time does not count.
        """
        self.paused_s += min(now - self._last_look, MAX_GAP_S)
        self._last_look = now
        if used != self._used:
            if not is_behind:
                self.stalled_s += min(self.paused_s, MAX_GAP_S)
            self._used, self.paused_s = used, 0.0


def processor_seconds(pid: int) -> float:
    """Processor time that all threads of a process have used. Where the system does not tell, it grows all the time."""
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) == 0:
        try:
            return time.clock_gettime(clock.value)
        except OSError:
            pass  # it has just ended
    return time.monotonic()
