"""The page at `/` and its live view: `GET /live` streams the engine's steps to viewers.

The engine is observed only while there are viewers. Reports are collected on its thread, converted to messages at most
ten times a second on the server's (`live_message.py` has the schema), and dropped for a viewer that does not keep up:
then `{"lost": n}` counts the missing messages. While the engine does not serve, a stream says so and ends: it neither
delays the server's stop, nor waits for an engine that may never come back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from time import monotonic

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from eyas.base.errors import Busy
from eyas.base.ports import EnginePort
from eyas.base.types import StepReport
from eyas.gateway.http.stream import EventStream, sse
from eyas.gateway.page import files, trace_step
from eyas.gateway.page.live_message import LiveMessage, LiveMessageBuilder
from eyas.gateway.server.context import Context
from eyas.gateway.server.steps import StepHub

__all__ = ["LiveFeed", "Viewer", "routes"]

MAX_VIEWERS = 16
MAX_REPORTS = 4096  # steps that may wait to be converted
MAX_BEHIND = 20  # messages that one viewer may lag, two seconds
INTERVAL_S = 0.1
IDLE_S = 1.0  # interval of messages about the queue and the engine's health while there are no steps


def routes(context: Context) -> list[Route]:
    """Return the routes `/`, `/page/{file}`, `/live` and `/live/trace/{step}`."""
    feed = LiveFeed(
        context.engine, context.steps, LiveMessageBuilder(context.codec, with_text=context.options.live == "text")
    )

    async def live(request: Request) -> ASGIApp:
        if context.options.live == "off":
            raise HTTPException(404, "the live view is off on this server; start it with --live text or blank")
        if request.method == "HEAD":  # a stream without data would never notice its client's disconnect
            return Response(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        viewer = feed.join()
        return EventStream(viewer.events(), on_close=lambda: feed.leave(viewer))

    return [*files.routes(), Route("/live", live), trace_step.route(context)]


class Viewer:
    """Unsent messages of one connection."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._num_lost = 0
        self._is_ended = False
        self._filled = asyncio.Event()

    def put(self, message: bytes) -> None:
        if len(self._messages) == MAX_BEHIND:
            self._messages.popleft()
            self._num_lost += 1
        self._messages.append(message)
        self._filled.set()

    def end(self) -> None:
        """End the stream after the queued messages."""
        self._is_ended = True
        self._filled.set()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events until `end`."""
        while not (self._is_ended and not self._messages):
            await self._filled.wait()
            self._filled.clear()
            while self._messages:
                if self._num_lost:
                    lost, self._num_lost = self._num_lost, 0
                    yield sse(msgspec.json.encode({"lost": lost}))
                yield sse(self._messages.popleft())


class LiveFeed:
    """Sends step reports to all viewers. Everything but `_listen` runs on the server's loop."""

    def __init__(self, engine: EnginePort, hub: StepHub, builder: LiveMessageBuilder) -> None:
        self._engine = engine
        self._hub = hub
        self._builder = builder
        self._viewers: set[Viewer] = set()
        self._reports: deque[StepReport] = deque()
        self._num_lost = 0
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start = monotonic()

    def join(self) -> Viewer:
        """Add a viewer. Raises Busy if there are too many already."""
        if len(self._viewers) == MAX_VIEWERS:
            raise Busy(f"{MAX_VIEWERS} live views are open already; close one")
        viewer = Viewer()
        self._viewers.add(viewer)
        self._send_state([viewer])
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._hub.add(self._listen)
            self._task = asyncio.create_task(self._run())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer; without viewers the engine is no longer observed."""
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._hub.remove(self._listen)
            self._task.cancel()
            self._task = None
            self._reports.clear()
            self._builder.forget()

    def _listen(self, report: StepReport) -> None:
        """Queue a report. Called on the engine's thread, so it must be quick."""
        if len(self._reports) >= MAX_REPORTS:
            self._num_lost += 1
            return
        self._reports.append(report)
        if not self._arrived.is_set() and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
                self._loop.call_soon_threadsafe(self._arrived.set)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), IDLE_S)
            self._arrived.clear()
            self._send_reports()
            await asyncio.sleep(INTERVAL_S)

    def _send_reports(self) -> None:
        if lost := self._num_lost:
            self._num_lost = 0
            self._builder.forget()
            self._send(msgspec.json.encode({"lost": lost}))
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        if reports:
            self._send(self._encode(self._builder.batch(self._now(), reports)))
        else:
            self._send_state(self._viewers)

    def _send_state(self, viewers: Iterable[Viewer]) -> None:
        stats, failure = self._engine.stats(), self._engine.failure
        if stats.num_running == 0:
            self._builder.forget()  # choices without an end, for instance after the engine died
        message = self._encode(self._builder.state(self._now(), stats, failure))
        for viewer in viewers:
            viewer.put(message)
            if failure is not None:
                viewer.end()

    def _send(self, message: bytes) -> None:
        for viewer in self._viewers:
            viewer.put(message)

    def _now(self) -> float:
        return monotonic() - self._start

    @staticmethod
    def _encode(message: LiveMessage) -> bytes:
        return msgspec.json.encode(message)
