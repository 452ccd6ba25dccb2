"""Receives request bodies within a bound on the bytes of all together, and queues the rest.

A waiting connection is not read from: what its client sends stays on the client's side.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest

from eyas.base.errors import Busy
from eyas.gateway.http.workers import HUGE

__all__ = ["Intake"]

JSON = "application/json"
CAPACITY = 64 << 20
SMALL = 64 << 10  # bytes that uvicorn reads of any body before the app asks for them
MAX_WAITING = 256
PATIENCE_S = 10.0
TRIM_S = 0.2
SLOW_S = 2.0  # a client that takes longer to send loses its place while others wait


@dataclass(eq=False, slots=True)
class _Place:
    """The memory reserved for one body, once it is `granted`. `late` stops receiving it."""

    size: int
    late: asyncio.Timeout
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    since: float = 0.0


class Intake:
    """A memory budget of CAPACITY bytes for bodies, or of one `max_body`. One per server, used inside its event loop.

    A body of more than SMALL bytes reserves its declared length, one of unknown length `max_body`, in order of arrival,
    so that each body that has begun can be received to its end. Slow clients cannot keep others out: when a body has
    waited for SLOW_S, those that have been sending for longest are refused.
    """

    def __init__(self, max_body: int = CAPACITY) -> None:
        self._max_body = max_body
        self.num_free = max(CAPACITY, max_body)
        self._waiting: deque[_Place] = deque()
        self._receiving: dict[_Place, None] = {}  # oldest first
        self._trimming: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def body(self, http: HttpRequest) -> AsyncGenerator[bytearray, None]:
        """Yield the raw body, which counts towards the budget as long as the context lasts.

        Raises HTTPException 415 unless it is declared as JSON, which pages of other sites cannot do: a browser sends a
        preflight request before a page's JSON goes to another site, but not for other content types, or none. Raises
        Busy if there is no room for it within PATIENCE_S, or if it came too slowly while others waited.
        """
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            what = f"this is '{kind[:80]}'" if kind else "this has none"
            raise HTTPException(415, f"send JSON, with the header 'Content-Type: {JSON}'; {what}")
        raw = bytearray()
        place: _Place | None = None
        try:
            try:
                async with asyncio.timeout(None) as late:
                    async for part in http.stream():
                        raw += part
                        if place is None and len(raw) > SMALL:
                            place = _Place(int(http.headers.get("content-length", self._max_body)), late)
                            await self._enter(place)
            except TimeoutError as error:
                raise Busy("the body came too slowly while others waited; try again later") from error
            if place is not None:
                self._received(place, len(raw))
            yield raw
        finally:
            if place is not None:
                self._leave(place)

    async def _enter(self, place: _Place) -> None:
        if len(self._waiting) >= MAX_WAITING:
            raise Busy("too many large bodies wait to be received; try again later")
        self._waiting.append(place)
        self._admit()
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while not place.granted.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(SLOW_S):
                    await place.granted.wait()
                return
            if asyncio.get_running_loop().time() >= end:
                raise Busy("other large bodies took all the room for them; try again later")
            self._refuse_slow()

    def _admit(self) -> None:
        while self._waiting and self._waiting[0].size <= self.num_free:
            place = self._waiting.popleft()
            self.num_free -= place.size
            place.since = asyncio.get_running_loop().time()
            self._receiving[place] = None
            place.granted.set()

    def _received(self, place: _Place, size: int) -> None:
        del self._receiving[place]
        self.num_free += place.size - size
        place.size = size
        self._admit()

    def _leave(self, place: _Place) -> None:
        if place.size > HUGE and self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(TRIM_S, self._trim)
        if place.granted.is_set():
            self._receiving.pop(place, None)
            self.num_free += place.size
        elif place in self._waiting:
            self._waiting.remove(place)
        self._admit()

    def _trim(self) -> None:
        self._trimming = None
        asyncio.get_running_loop().run_in_executor(None, give_back_memory)

    def _refuse_slow(self) -> None:
        """Make room for the first waiting body by refusing bodies that have been arriving for more than SLOW_S."""
        now = asyncio.get_running_loop().time()
        lacking = self._waiting[0].size - self.num_free if self._waiting else 0
        for place in list(self._receiving):
            if lacking <= 0 or now - place.since < SLOW_S:
                return
            lacking -= place.size
            del self._receiving[place]
            place.late.reschedule(now)


def give_back_memory() -> None:
    """Return freed memory to the system: glibc keeps it, in an arena for each thread. Does nothing elsewhere."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
