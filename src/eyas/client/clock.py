"""The budgets of time while an endpoint is asked: which runs, when it is spent. Pure: the caller has the clock.

queued -> queue, loading -> a bound of its own, reading or silence -> prefill, after the first token -> stall; the total
runs all the time, the others from the first request on. Queue and load add up over all tries at an endpoint. Prefill
does, too, until the server says that another backend reads the prompt, or that it is read after a wait.
"""

from __future__ import annotations

import math

from eyas.base.serving.budgets import LOAD_S, Budgets
from eyas.base.serving.waiting import Waiting, WaitingState
from eyas.client.errors import Span, Stalled, TimedOut

__all__ = ["Clock"]

SPANS: dict[WaitingState, Span] = {"queued": "queue", "loading": "loading", "reading": "prefill"}
SLOP_S = 1e-6  # a timer may be early by less


class Clock:
    """State of the budgets of one request at one endpoint. `due` is when the first of them is spent.

    `began` is when the request began, at whichever endpoint: the total counts from there.
    """

    __slots__ = (
        *("_asked_at", "_backend", "_budgets", "_is_silent", "_limits", "_pause", "_since", "_span", "_spent"),
        *("_until", "_was_sent", "due"),
    )

    def __init__(self, budgets: Budgets, now: float, *, began: float, load_s: float = LOAD_S) -> None:
        self._budgets = budgets
        self._limits: dict[Span, float] = {
            "queue": _or_inf(budgets.queue_s),
            "loading": load_s,
            "prefill": _or_inf(budgets.prefill_s),
            "stall": _or_inf(budgets.stall_s),
        }
        self._pause = self._limits["stall"]
        self._until = began + _or_inf(budgets.total_s)
        self._spent: dict[Span, float] = dict.fromkeys(self._limits, 0.0)
        self._backend: str | None = None
        self._span: Span = "prefill"
        self._since = self._asked_at = now
        self._is_silent = True
        self._was_sent = False
        self.due = 0.0
        self._set_due(now)

    @property
    def has_begun(self) -> bool:
        """Whether something of the answer has come."""
        return self._span == "stall"

    def sent(self, now: float) -> None:
        """Record that a request is sent: until the server says what it waits for, it reads."""
        if not self._was_sent:
            self._was_sent, self._since = True, now
        self._enter("prefill", now)
        self._asked_at = now
        self._is_silent = True

    def pauses(self, waiting: Waiting, now: float) -> None:
        """Record that the client waits before it asks again, for a place or for a model that is loaded.

        What a server took to say that it loads its model was no reading of the prompt.
        """
        if self._is_silent and waiting.state == "loading":
            self._span = "loading"
        self._enter(SPANS[waiting.state], now)
        self._is_silent = False

    def hears(self, waiting: Waiting, now: float) -> None:
        """Record what the server says that the request waits for; the silence before is of that, too."""
        span = SPANS[waiting.state]
        if self._span == "stall":  # it has begun to answer
            return
        is_new = span == "prefill" and self._is_other(waiting.backend)
        if self._is_silent:
            self._is_silent = False
            self._span = span
        else:
            is_new = is_new or (span == "prefill" and self._span != "prefill")
            self._enter(span, now)
        if is_new:
            self._spent["prefill"] = 0.0
        if span == "prefill":
            self._backend = waiting.backend or self._backend
        self._set_due(now)

    def shows(self, now: float) -> None:
        """Record a piece of the answer."""
        self._span = "stall"
        self._since = now
        due = now + self._pause
        self.due = due if due < self._until else self._until

    def idled(self, seconds: float) -> None:
        """Leave out a pause in an answer in which the caller has not asked for more."""
        if self._span == "stall":
            self.due = min(self.due + seconds, self._until)

    def has_room(self, waiting: Waiting, now: float) -> bool:
        """Return whether the budgets have room for a pause of `eta_s` before the next try."""
        span = SPANS[waiting.state]
        left_s = self._limits[span] - self._spent[span]
        return (waiting.eta_s or 0.0) < min(left_s, self._until - now)

    def error(self, now: float, endpoint: str) -> TimedOut:
        """Return the error for the budget that ended at `due`."""
        if now >= self._until - SLOP_S:
            total_s = self._budgets.total_s or 0.0
            # With less than half of the time, or while it waits for others, running out is not the server's fault.
            is_failure = self._span in ("prefill", "stall") and now - self._asked_at >= total_s / 2
            return TimedOut("total", total_s, endpoint=endpoint, kind="budget" if is_failure else None)
        span = self._span
        if span == "stall":
            return Stalled(self._pause, endpoint=endpoint)
        if span == "prefill":
            return TimedOut(span, self._limits[span], endpoint=endpoint, kind="budget")
        if span == "loading" and now < self._since + self._limits[span] - self._spent[span] - SLOP_S:
            silent_s = self._limits["prefill"]
            detail = f"it was loading a model, and has said nothing for {silent_s:g} s"
            return TimedOut(span, silent_s, endpoint=endpoint, kind="budget", detail=detail)
        return TimedOut(span, self._limits[span], endpoint=endpoint)

    def _is_other(self, backend: str | None) -> bool:
        return backend is not None and self._backend is not None and backend != self._backend

    def _enter(self, span: Span, now: float) -> None:
        self._spent[self._span] += now - self._since
        self._since, self._span = now, span
        self._set_due(now)

    def _set_due(self, now: float) -> None:
        due = self._since + self._limits[self._span] - self._spent[self._span]
        if self._span == "loading":  # the router repeats itself every few seconds while it lives
            due = min(due, now + self._limits["prefill"])
        self.due = min(due, self._until)


def _or_inf(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
