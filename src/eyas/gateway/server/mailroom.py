"""Delivers events from the engine's thread to the event loop, with one wake-up for all that come at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from eyas.base.ports import Deliver
from eyas.base.types import TokenEvent

__all__ = ["Inbox", "Mailroom", "Receive"]

SLICE = 8  # events per iteration of the loop: uvloop sends written data only at the end of an iteration

T = TypeVar("T")

Receive = Callable[[TokenEvent, float], None]


class Mailroom:
    """Delivers events in order; one per server, and all receivers run in its event loop.

    Waking a loop from another thread costs more than reading an event, so a round of 64 sequences wakes it once.
    """

    def __init__(self) -> None:
        self._post: deque[tuple[Receive, TokenEvent, float]] = deque()
        self._is_called = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def address(self, receive: Receive) -> Deliver:
        """Return a function for any thread that has `receive(event, time)` called in the running loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the previous one may have ended with a call pending
            self._loop, self._is_called = loop, False

        def deliver(event: TokenEvent) -> None:
            self._post.append((receive, event, time.perf_counter()))
            if not self._is_called:
                self._is_called = True
                try:
                    loop.call_soon_threadsafe(self._hand_out)
                except RuntimeError:  # the loop is closed: there is no reader left
                    self._is_called = False

        return deliver

    def _hand_out(self) -> None:
        self._is_called = False  # first: what is appended from now on calls again
        for _ in range(min(len(self._post), SLICE)):
            receive, event, now = self._post.popleft()
            receive(event, now)
        if self._post and not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._hand_out)  # after the tasks that have just been woken


class Inbox(Generic[T]):
    """A queue for one reader in the loop that also fills it, without the locks of asyncio.Queue."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> T:
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()
