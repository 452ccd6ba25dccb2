"""Sends the stream of a backend on to a client: holds it back until it shows something, and watches it for loops."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from eyas.base.serving.failures import FailureKind
from eyas.base.serving.repetition import Loop
from eyas.base.serving.sse import MAX_EVENT, EventSplitter, EventTooLong
from eyas.router.guard.watch import Watch, failure_of
from eyas.router.manager.visit import Visit
from eyas.router.relay.alarm import Alarm
from eyas.router.relay.client import Client
from eyas.router.relay.readers import Reader
from eyas.router.relay.refusals import hidden
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.headers import Headers
from eyas.router.upstream.part import Part
from eyas.router.upstream.upstream import Reply

__all__ = ["Pouring", "one_by_one", "parts_of"]

SLOW_S = 0.1  # a write that takes longer waits for the client: the backend has had no chance to go on


async def parts_of(reply: Reply, reader: Reader, key: str | None = None) -> AsyncGenerator[list[Part], None]:
    """Yield the events of each chunk; `key` is taken out of errors.

    Raises UpstreamError if the stream ends before its answer does. What has come of an event then is dropped, or the
    error that follows would be a part of it.
    """
    splitter = EventSplitter()
    while chunk := await reply.chunk():
        try:
            events = splitter.feed(chunk)
        except EventTooLong as error:
            raise UpstreamError("malformed", str(error)) from None
        if events:
            yield [_without(key, reader.read(event)) for event in events]
    last = reader.read(splitter.rest) if splitter.rest else None
    if not (reader.is_complete or (last is not None and last.is_last)):
        raise UpstreamError("broken", "its stream ended before the answer")
    if last is not None:
        yield [_without(key, last)]


def _without(key: str | None, part: Part) -> Part:
    if key is None or (part.error is None and not part.is_mistake):
        return part
    return msgspec.structs.replace(part, data=hidden(part.data, key))


async def one_by_one(parts: AsyncGenerator[Part, None]) -> AsyncGenerator[list[Part], None]:
    """Yield each part as a list of its own."""
    async with aclosing(parts):
        async for part in parts:
            yield [part]


class Pouring:
    """One backend's answer on its way. `is_shown`: the client has seen something of it, so that no other can follow.

    `on_loop` hears of a loop that `watch` finds, and whether the answer ends at it.
    """

    def __init__(
        self,
        client: Client,
        visit: Visit,
        alarm: Alarm,
        loop: asyncio.AbstractEventLoop,
        *,
        on_loop: Callable[[Loop, bool], None],
        on_stored: Callable[[str], None],
    ) -> None:
        self._client, self._visit, self._alarm, self._loop = client, visit, alarm, loop
        self._on_loop, self._on_stored = on_loop, on_stored
        self.watch: Watch | None = None
        self._out: list[bytes] = []
        self._shows = self._is_last = self._has_progress = False
        self._failure: tuple[FailureKind, str] | None = None
        self.num_events = 0
        self.is_shown = False
        self.has_sent_error = False  # the backend's own

    async def pour(
        self,
        batches: AsyncGenerator[list[Part], None],
        headers: Headers,
        *,
        stall_s: float | None,
        until: float,
        on_first: Callable[[], None],
    ) -> None:
        """Send all of an answer, and end the client's. Raises UpstreamError.

        The alarm ends each pause after `stall_s`, and everything at `until`, a time of the loop.
        """
        client, alarm, loop = self._client, self._alarm, self._loop
        pause, is_first = math.inf if stall_s is None else stall_s, False
        async with aclosing(batches):
            async for parts in batches:
                self._take(parts)
                if not self.is_shown:
                    self._check()
                    if not (self._shows or self._is_last):
                        continue
                    self.is_shown = is_first = True
                    alarm.held = True
                    await client.begin(headers)
                if self._is_last:
                    break
                before = loop.time()
                if self._out:
                    alarm.held = True
                    await client.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
                    alarm.held = False
                    self._out.clear()
                if self._failure is not None:
                    raise UpstreamError(*self._failure)
                now = loop.time()
                if is_first:  # when it is on its way: the client has waited long enough
                    is_first = False
                    self._visit.shown()
                    on_first()
                    alarm.set(min(now + pause, until), f"it has stalled for {stall_s} s, or its time is up")
                elif self._has_progress or now - before > SLOW_S:
                    alarm.due = min(now + pause, until)
                self._has_progress = False
        if not self.is_shown:
            self.is_shown = is_first = True
            await client.begin(headers)
        alarm.unset()
        if is_first and self._shows:
            on_first()
        self._visit.done()
        await client.end(b"".join(self._out))

    def _take(self, parts: list[Part]) -> None:
        """Add parts to what is to be sent, up to a failure or the end."""
        out = self._out
        for part in parts:
            if part.text and self.watch is not None and (loop := self.watch.add(part.text)) is not None:
                self._on_loop(loop, self.watch.is_acting)
                if self.watch.is_acting:
                    self._failure = failure_of(loop), f"its answer repeats itself: {loop}"
                    return
            if part.error is not None:
                self._failure = "status", part.error
                if self.is_shown:
                    self.has_sent_error = True
                    out.append(part.data)
                return
            self.num_events += 1
            if part.is_noise or not part.data:
                if not self.is_shown and not self._shows:
                    continue
            else:
                self._has_progress = True
            out.append(part.data)
            if part.shows:
                self._shows = True
            if part.stored is not None:
                self._on_stored(part.stored)
            if part.is_last:
                self._is_last = True
                return

    def _check(self) -> None:
        """Raises UpstreamError for an answer that fails, or holds too much, before anything of it was sent."""
        if self._failure is not None:
            raise UpstreamError(*self._failure)
        if not self._shows and sum(map(len, self._out)) > MAX_EVENT:
            raise UpstreamError("malformed", f"its stream has shown nothing in {MAX_EVENT} bytes")
