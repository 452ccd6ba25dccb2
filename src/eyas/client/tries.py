"""Tries of one request at one endpoint: again after a pause, while budgets and breaker allow."""

from __future__ import annotations

import asyncio
import random

from eyas.base.serving.breaker import Ticket
from eyas.client.clock import Clock
from eyas.client.errors import CircuitOpen, ClientError, Closed, Refused, ServerBusy, TimedOut
from eyas.client.pieces import Waiting
from eyas.client.server import Server

__all__ = ["Tries", "pause_s"]

FIRST_PAUSE_S = 0.5  # before the second try; doubled for each further one


class Tries:
    """Counts the tries of one request, and tells the breaker how each went. Raises CircuitOpen when made."""

    __slots__ = ("_again_at", "_clock", "_loop", "_max_tries", "_num_closed", "_num_tries", "_server", "_ticket")

    def __init__(self, server: Server, clock: Clock, *, max_tries: int) -> None:
        self._server, self._clock, self._max_tries = server, clock, max_tries
        self._loop = asyncio.get_running_loop()
        self._num_tries = 0
        self._num_closed = server.num_closed
        self._again_at: float | None = None  # when the pause is over that runs since the last failure
        self._ticket: Ticket | None = server.enter()

    async def begin(self) -> None:
        """Begin a try, after a pause if it is not the first. Raises CircuitOpen, and Closed."""
        if self._again_at is not None:
            await asyncio.sleep(max(0.0, self._again_at - self._loop.time()))
            if self._is_closed:
                raise Closed(endpoint=self._server.name)
            self._ticket = self._server.enter()
        self._num_tries += 1
        self._clock.sent(self._loop.time())

    def error_of(self, error: TimeoutError | ClientError) -> ClientError:
        """Return what ended a try as an error of the client; a TimeoutError that is none is a budget that is spent."""
        if self._is_closed:
            return Closed(endpoint=self._server.name)
        return error if isinstance(error, ClientError) else self._clock.error(self._loop.time(), self._server.name)

    def failed(self, error: ClientError) -> Waiting:
        """Count a failure and return what the pause before the next try waits for. Raises it if none follows.

        A server that loads its model is asked until the time for that is over.
        """
        now = self._loop.time()
        self.ended(error)
        is_loading = isinstance(error, ServerBusy) and error.is_loading
        if is_loading:
            self._num_tries -= 1
        may_try = not self._clock.has_begun and self._num_tries < self._max_tries
        seconds = pause_s(error, self._num_tries) if may_try else None
        if seconds is None or not self._server.breaker.allows(now + seconds):
            raise error
        pause = Waiting(state="loading" if is_loading else "queued", eta_s=seconds)
        self._clock.pauses(pause, now)
        if not self._clock.has_room(pause, now):
            raise error
        self._again_at = now + seconds
        return pause

    def ended(self, error: BaseException | None) -> None:
        """Count how a try went: with a whole answer, or by an error. Once; what follows changes nothing."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._server.settle(ticket, error)

    @property
    def _is_closed(self) -> bool:
        """Whether the connections were closed since: others must not be opened for what was asked before."""
        return self._server.num_closed != self._num_closed


def pause_s(error: ClientError, num_tries: int) -> float | None:
    """Return the pause before the next try, after `num_tries` of them; None if none will help.

    A full server says itself when it may have room. Other pauses differ by chance, so that clients do not all come
    back at once.
    """
    if isinstance(error, CircuitOpen | Closed | TimedOut) or (isinstance(error, Refused) and error.kind is None):
        return None
    if isinstance(error, ServerBusy) and error.retry_after_s is not None:
        return error.retry_after_s
    return FIRST_PAUSE_S * 2.0 ** (num_tries - 1) * random.uniform(0.75, 1.25)
