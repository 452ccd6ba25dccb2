"""Threads for work on large requests before the engine sees them, and a bound on what waits for these threads.

How many bytes of bodies may wait is bounded where they are received, in intake.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request as HttpRequest

from eyas.base.errors import Busy
from eyas.gateway.http.stream import until_disconnect

__all__ = ["HUGE", "LARGE", "Workers"]

T = TypeVar("T")

LARGE = 8 << 10  # characters that take about as long to encode as a thread takes to hand them over and back
NUM_THREADS = 3  # the event loop takes turns with those that hold the interpreter's lock
MAX_WAITING = 256
HUGE = 1 << 20  # bytes: decoding may take ten times this, so one is done at a time


class Workers:
    """Of one server, inside its event loop. A thread that began goes on to the end, whoever has left."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="eyas-worker")
        self._free = asyncio.Semaphore(NUM_THREADS)
        self._huge = asyncio.Semaphore(1)
        self.num_waiting = 0

    async def run(self, http: HttpRequest, size: int, work: Callable[[], T]) -> T:
        """Do `work` on `size` bytes: here, or in a thread if it would hold up all other requests.

        Raises Busy when too much waits for the threads already, and ClientGone when who sent `http` leaves.
        """
        return work() if size < LARGE else await until_disconnect(http.receive, self._in_thread(size, work))

    async def _in_thread(self, size: int, work: Callable[[], T]) -> T:
        if self.num_waiting >= MAX_WAITING:
            raise Busy("too many large requests wait to be read; try again later")
        needed = (self._free,) if size < HUGE else (self._huge, self._free)
        taken: list[asyncio.Semaphore] = []
        self.num_waiting += 1
        try:
            for semaphore in needed:
                await semaphore.acquire()
                taken.append(semaphore)
            future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        except BaseException:
            release(taken)
            raise
        finally:
            self.num_waiting -= 1
        future.add_done_callback(lambda _: release(taken))
        try:
            return await asyncio.shield(future)  # else a thread that still works would count as free
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # whose client has left
            raise


def release(semaphores: Iterable[asyncio.Semaphore]) -> None:
    for semaphore in semaphores:
        semaphore.release()
