"""Threads for work on large requests before they reach the engine, and a bound on the queue for these threads.

The bytes of waiting bodies are bounded where they are received, in intake.py.
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

LARGE = 8 << 10  # characters that take about as long to encode as the hand-over to a thread and back
NUM_THREADS = 3  # those that hold the interpreter's lock compete with the event loop
MAX_WAITING = 256
HUGE = 1 << 20  # bytes: decoding may take ten times this, so one is done at a time


class Workers:
    """The threads of one server, used inside its event loop. Work that began runs to its end even without a client."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="eyas-worker")
        self._free = asyncio.Semaphore(NUM_THREADS)
        self._huge = asyncio.Semaphore(1)
        self.num_waiting = 0

    async def run(self, http: HttpRequest, size: int, work: Callable[[], T]) -> T:
        """Do `work` on `size` bytes: here, or in a thread if it would block the event loop for too long.

        Raises Busy if too many requests wait for the threads, and ClientGone when the client of `http` disconnects.
        """
        return work() if size < LARGE else await until_disconnect(http.receive, self._in_thread(size, work))

    async def _in_thread(self, size: int, work: Callable[[], T]) -> T:
        if self.num_waiting >= MAX_WAITING:
            raise Busy("too many large requests wait to be decoded; try again later")
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
            return await asyncio.shield(future)  # otherwise a thread that still works would count as free
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # its client has disconnected
            raise


def release(semaphores: Iterable[asyncio.Semaphore]) -> None:
    for semaphore in semaphores:
        semaphore.release()
