"""A request as the policy sees it: which backends it may go to, which it has tried, how long it has waited."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from eyas.base.serving.breaker import Ticket
from eyas.base.serving.budgets import LOAD_S
from eyas.base.serving.failures import BREAKING, FailureKind
from eyas.base.serving.waiting import Waiting
from eyas.router.manager.backend import Backend
from eyas.router.manager.visit import Wanted

__all__ = ["Outlook", "Request"]

PATIENCE_S = 10.0  # that a session waits for the backend that has its prefix cached, while another one is free
SLOP_S = 1e-6  # a timer may be early by less

Outlook = Literal["queued", "loading"]


@dataclass(slots=True, eq=False)
class Request:
    """State of one request. Changed by the policy alone."""

    number: int
    client: str
    wanted: Wanted
    order: tuple[str, ...]  # of backends, best first
    home: str | None  # where its session was before; first in `order`
    since: float  # arrived, or came back from a backend
    tried: dict[str, FailureKind | Literal["full"]] = field(default_factory=dict)
    retry_after_s: float = math.inf  # the least that a full backend named
    backend: Backend | None = None  # that has it
    ticket: Ticket | None = None
    sent_at: float = 0.0
    is_shown: bool = False
    outlook: Outlook | None = None  # None: does not wait
    outlook_since: float = 0.0
    queued_before_s: float = 0.0
    wake_at: float = math.inf  # when time alone changes something for it
    is_back: bool = False  # from a backend that was unloaded beneath it: so it comes back once
    is_spent: bool = False  # its budget for the queue, for a backend that could have answered

    def is_cut(self, failure: FailureKind | None) -> bool:
        """Return whether such a failure is the router's own doing: it unloaded the backend that has the request."""
        is_doing = failure in BREAKING and failure != "budget"
        return is_doing and self.backend is not None and self.backend.unloaded_at >= self.sent_at

    def queued_s(self, now: float) -> float:
        """Return how long it has queued, at all backends; waiting for one that loads is no queueing."""
        return self.queued_before_s + (now - self.outlook_since if self.outlook == "queued" else 0.0)

    def queue_limit(self, backend: Backend) -> float:
        """Return how long it may queue, in seconds, if `backend` is to answer: its whole time is a limit too."""
        budgets = backend.settings.budgets.with_spans(self.wanted.budgets)
        return min((limit_s for limit_s in (budgets.queue_s, budgets.total_s) if limit_s is not None), default=math.inf)

    def look(self, backends: dict[str, Backend], now: float) -> Backend | Outlook | None:
        """Return the backend that it goes to now, else what it waits for; None: no backend will answer it.

        Sets `wake_at` and `is_spent`.
        """
        is_queued = is_loading = self.is_spent = False
        wake_at, queued_s = math.inf, self.queued_s(now)
        for name in self.order:
            if name in self.tried:
                continue
            backend = backends[name]
            match backend.standing(now):
                case "free":
                    return backend
                case "busy" | "probing" as standing:
                    left_s = self.queue_limit(backend) - queued_s
                    if left_s <= SLOP_S:
                        self.is_spent = True
                        continue
                    is_queued = True
                    wake_at = min(wake_at, now + left_s)
                    if name == self.home and standing == "busy" and now < self.since + PATIENCE_S - SLOP_S:
                        wake_at = min(wake_at, self.since + PATIENCE_S)
                        break
                case "loading":
                    is_loading = True
                    wake_at = min(wake_at, backend.waits_until)
                case "idle" if now < self.since + LOAD_S - SLOP_S:
                    is_loading = True
                    wake_at = min(wake_at, self.since + LOAD_S)
                case "open":
                    if (until := backend.breaker.open_until) is not None:
                        wake_at = min(wake_at, until)
        self.wake_at = wake_at
        return "queued" if is_queued else "loading" if is_loading else None

    def to_load(self, backends: dict[str, Backend], now: float) -> str | None:
        """Return the backend that is to be loaded for it; None where one loads already, or it waits for a place."""
        if self.outlook != "loading":
            return None
        left = [name for name in self.order if name not in self.tried]
        standings = {name: backends[name].standing(now) for name in left}
        if "loading" in standings.values():
            return None
        return next((name for name, standing in standings.items() if standing == "idle"), None)

    def waiting(self, backends: dict[str, Backend], position: int, now: float) -> Waiting:
        """Return why it waits, at `position` in the queue, and a guess how long."""
        left = [backends[name] for name in self.order if name not in self.tried]
        if self.outlook == "loading":
            loading = (backend.ready_in_s(now) for backend in left if backend.standing(now) == "loading")
            ready_s = min((seconds for seconds in loading if seconds is not None), default=None)
            return Waiting(state="loading", eta_s=None if ready_s is None else math.ceil(ready_s))
        serving = [backend for backend in left if backend.standing(now) in ("free", "busy", "probing")]
        holds_s = [backend.hold_s for backend in serving if backend.hold_s is not None]
        if not holds_s:
            return Waiting(state="queued", position=position)
        places = sum(backend.settings.concurrency for backend in serving)
        eta_s = math.ceil(position * sum(holds_s) / len(holds_s) / places)
        return Waiting(state="queued", position=position, eta_s=eta_s)

    def waits(self, outlook: Outlook, now: float) -> bool:
        """Record what it waits for; return whether that is something else than before."""
        if outlook == self.outlook:
            return False
        self.queued_before_s = self.queued_s(now)
        self.outlook, self.outlook_since = outlook, now
        return True

    def waits_no_more(self, now: float) -> None:
        """Record the end of a wait."""
        self.queued_before_s = self.queued_s(now)
        self.outlook = None
