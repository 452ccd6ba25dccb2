"""Threads for work on large requests before the engine sees them, and a bound on what waits for these threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request as HttpRequest

from eyas.base.errors import Busy
from eyas.gateway.stream import until_disconnect

__all__ = ["LARGE", "Workers"]

T = TypeVar("T")

LARGE = 8 << 10  # characters that take about as long to encode as a thread takes to hand them over and back
NUM_THREADS = 3  # the event loop takes turns with those that hold the interpreter's lock
MAX_WAITING = 256
MAX_WAITING_BYTES = 64 << 20


class Workers:
    """Of one server, inside its event loop. A thread that began goes on to the end, whoever has left."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="eyas-worker")
        self._free = asyncio.Semaphore(NUM_THREADS)
        self.num_waiting = 0
        self._num_waiting_bytes = 0

    async def run(self, http: HttpRequest, size: int, work: Callable[[], T]) -> T:
        """Do `work` on `size` bytes: here, or in a thread if it would hold up all other requests.

        Raises Busy when too much waits for the threads already, and ClientGone when who sent `http` leaves.
        """
        return work() if size < LARGE else await until_disconnect(http.receive, self._in_thread(size, work))

    async def _in_thread(self, size: int, work: Callable[[], T]) -> T:
        num_bytes = self._num_waiting_bytes + size
        if self.num_waiting and (self.num_waiting >= MAX_WAITING or num_bytes > MAX_WAITING_BYTES):
            raise Busy("too many large requests wait to be read; try again later")
        self.num_waiting += 1
        self._num_waiting_bytes += size
        try:
            await self._free.acquire()
        finally:
            self.num_waiting -= 1
            self._num_waiting_bytes -= size
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(lambda _: self._free.release())
        try:
            return await asyncio.shield(future)  # else a thread that still works would count as free
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # whose client has left
            raise
