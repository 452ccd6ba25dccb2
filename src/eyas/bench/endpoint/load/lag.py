"""Delay of the measuring process itself: of its event loop and its requests, and its share of a core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from eyas.bench.endpoint.records import Lag
from eyas.bench.stats import percentile

__all__ = ["LagMeter", "bottleneck"]

STEP_S = 0.005
MAX_CPU_SHARE = 0.8  # of a core: one thread reads all streams
MIN_LAG_S = 0.01
MAX_LAG_SHARE = 0.1  # of the time to the first text
MAX_PAUSE_SHARE = 0.05  # of a whole answer, between two requests of one place


class LagMeter:
    """Measures lateness of the running loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._began = self._began_cpu = self._cpu_share = 0.0

    def start(self) -> None:
        """Begin to measure."""
        self._began, self._began_cpu = time.perf_counter(), time.process_time()
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """End it; again changes nothing."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            elapsed_s = time.perf_counter() - self._began
            self._cpu_share = (time.process_time() - self._began_cpu) / elapsed_s if elapsed_s > 0 else 0.0

    def lag(self, send_s: Sequence[float]) -> Lag:
        """Return what was found; `send_s` are the delays of requests against their schedule."""
        return Lag(
            loop_p99_s=percentile(self._late_s, 99) if self._late_s else 0.0,
            send_p99_s=percentile(send_s, 99) if send_s else 0.0,
            cpu_share=self._cpu_share,
        )

    async def _watch(self) -> None:
        while True:
            now = time.perf_counter()
            await asyncio.sleep(STEP_S)
            self._late_s.append(max(0.0, time.perf_counter() - now - STEP_S))


def bottleneck(lag: Lag, first_text_s: float, answer_s: float, *, is_open: bool) -> str:
    """Return why the client bounded what was measured, else "", from the median times to first and to last text.

    A late event loop adds to times to the first text, in an open loop late requests do, too; in a closed one the pause
    before the next request lowers the rate. A core that is full bounds the rate of chunks.
    """
    if lag.cpu_share > MAX_CPU_SHARE:
        return f"the client used {lag.cpu_share:.0%} of a core: it may have bounded the rate"
    if not is_open and lag.send_p99_s > max(MIN_LAG_S, MAX_PAUSE_SHARE * answer_s):
        return f"the client took {1e3 * lag.send_p99_s:.1f} ms (p99) from one request to the next: it lowered the rate"
    late_s = max(lag.loop_p99_s, lag.send_p99_s) if is_open else lag.loop_p99_s
    if late_s > max(MIN_LAG_S, MAX_LAG_SHARE * first_text_s):
        return f"the client was {1e3 * late_s:.1f} ms late (p99): other work takes its time"
    return ""
