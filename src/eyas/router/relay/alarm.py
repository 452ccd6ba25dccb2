"""Ends what a request waits for: when its client leaves, or when a budget of time is spent."""

from __future__ import annotations

import asyncio
import math

__all__ = ["Alarm", "ClientLeft", "Spent"]

HELD_S = 1.0  # between two looks while the client is being written to


class ClientLeft(Exception):
    """The client closed its connection before its answer was complete."""


class Spent(Exception):
    """A budget of time is spent; the message says which."""


class Alarm:
    """Cancels a task like `asyncio.timeout`, with one timer that is set again only when it has gone off too early.

    Moving `due` costs an assignment, so that each chunk of a stream may do it. `due` is a time of the loop.
    """

    __slots__ = ("_cause", "_is_off", "_loop", "_task", "_timer", "_timer_at", "due", "held", "what")

    def __init__(self, task: asyncio.Task[object], loop: asyncio.AbstractEventLoop) -> None:
        self._task, self._loop = task, loop
        self._cause: ClientLeft | Spent | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._is_off = False
        self.due = math.inf
        self.what = ""  # the budget that ends at `due`
        self.held = False  # the client is being written to: a slow one spends no budget

    def set(self, due: float, what: str) -> None:
        """Let the budget `what` end at `due`."""
        self.due, self.what = due, what
        if due < self._timer_at:
            self._start(due)

    def unset(self) -> None:
        """Let no budget end."""
        self.due = math.inf

    def left(self) -> None:
        """End the request: its client has left."""
        self._ring(ClientLeft())

    def spend(self, what: str) -> None:
        """End the waiting for a backend now."""
        self._ring(Spent(what))

    def off(self) -> None:
        """End nothing any more."""
        self._is_off = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cause(self) -> ClientLeft | Spent | None:
        """Return why the task was cancelled, once, and take the cancelling back. None: it was cancelled by others."""
        cause, self._cause = self._cause, None
        if cause is None or self._task.uncancel() > 0:
            return None
        return cause

    def _ring(self, cause: ClientLeft | Spent) -> None:
        if self._is_off:
            return
        if self._cause is None:
            self._cause = cause
            self._task.cancel()
        elif isinstance(cause, ClientLeft):
            self._cause = cause

    def _start(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self.due == math.inf:
            return
        now = self._loop.time()
        if self.held:
            self._start(now + HELD_S)
        elif now < self.due:
            self._start(self.due)
        else:
            self.due = math.inf
            self._ring(Spent(self.what))
