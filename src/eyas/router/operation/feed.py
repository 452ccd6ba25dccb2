"""The feed behind the page: what happens to backends, and how all stands, as server-sent events.

Messages are JSON objects: `{"status": ...}` (status.py) at first and at each change, at most twice a second;
`{"event": ...}` (manager/happenings.py); `{"lost": n}` to a viewer that did not keep up. Requests that go well make no
events. A new viewer gets the newest ones at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from eyas.base.errors import Busy
from eyas.gateway.page.live import MAX_VIEWERS, Viewer
from eyas.router.manager.happenings import Happening
from eyas.router.operation.hiding import Hide
from eyas.router.operation.status import RouterStatus

__all__ = ["Feed"]

SHOWN = frozenset({"failed", "full", "refused", "degenerate", "breaker", "condition", "loops", "memory"})
MAX_KEPT = 200
MAX_AT_FIRST = 18  # a viewer holds 20 messages
INTERVAL_S = 0.5
MAX_AT_ONCE = 8  # events in an interval; more are counted as lost, so that a storm of failures costs little


class Feed:
    """Keeps what happened, and sends it to viewers. Runs in the event loop."""

    def __init__(self, status: Callable[[], RouterStatus], hide: Hide) -> None:
        self._status = status
        self._hide = hide
        self._kept: deque[Happening] = deque(maxlen=MAX_KEPT)
        self._viewers: set[Viewer] = set()
        self._last = b""
        self._num_sent = self._num_lost = 0  # events since the last tick
        self._task: asyncio.Task[None] | None = None
        self._is_ended = False

    def happened(self, event: Happening) -> None:
        """Keep an event if it is one to show, and send it."""
        if event.kind not in SHOWN:
            return
        event = msgspec.structs.replace(event, text=self._hide(event.text))
        self._kept.append(event)
        if not self._viewers:
            return
        if self._num_sent >= MAX_AT_ONCE:
            self._num_lost += 1
            return
        self._num_sent += 1
        self._send(msgspec.json.encode({"event": event}))

    def join(self) -> Viewer:
        """Add a viewer. Raises Busy if there are too many already."""
        if len(self._viewers) >= MAX_VIEWERS:
            raise Busy(f"{MAX_VIEWERS} pages watch this router already; close one")
        viewer = Viewer()
        viewer.put(self._encoded())
        for event in list(self._kept)[-MAX_AT_FIRST:]:
            viewer.put(msgspec.json.encode({"event": event}))
        if self._is_ended:
            viewer.end()
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer; without viewers no status is made."""
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._last = b""

    def end(self) -> None:
        """End all streams: the router stops, and open pages must not delay it."""
        self._is_ended = True
        for viewer in self._viewers:
            viewer.end()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self._num_sent = 0
            if lost := self._num_lost:
                self._num_lost = 0
                self._send(msgspec.json.encode({"lost": lost}))
            message = self._encoded()
            if message != self._last:
                self._last = message
                self._send(message)

    def _encoded(self) -> bytes:
        return msgspec.json.encode({"status": self._status()})

    def _send(self, message: bytes) -> None:
        for viewer in self._viewers:
            viewer.put(message)
