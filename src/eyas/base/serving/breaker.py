"""A circuit breaker: failures in a row keep requests away from a server, until one of them may try again.

closed -- failures in a row --> open -- its time is up and one enters --> probing -- success --> closed
                                                                          probing -- failure --> open

Pure: times come in from the caller. Each request that enters gets a ticket, which says later how it went. Outcomes of
tickets that are older than the latest opening change nothing: requests that were on their way then can neither close a
breaker nor open it again. (States as in M. Nygard, "Release It!", 2007, with a single request in the half-open one.)
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Breaker", "BreakerState", "Ticket"]

BreakerState = Literal["closed", "open", "probing"]


class Ticket(NamedTuple):
    """The admission of one request."""

    generation: int
    is_probe: bool


class Breaker:
    """Counts failures in a row. `max_failures` of them open it for `open_s` seconds; then one request enters."""

    __slots__ = ("_failures", "_generation", "_max_failures", "_open_s", "_open_until", "_state")

    def __init__(self, *, max_failures: int = 5, open_s: float = 60.0) -> None:
        self._max_failures = max_failures
        self._open_s = open_s
        self._state: BreakerState = "closed"
        self._failures = 0
        self._open_until = 0.0
        self._generation = 0

    @property
    def state(self) -> BreakerState:
        """The state; `open` stays until a probe enters, even when the time is up."""
        return self._state

    @property
    def open_until(self) -> float | None:
        """The time at which a probe may enter; None unless open."""
        return self._open_until if self._state == "open" else None

    @property
    def failures(self) -> int:
        """The failures in a row."""
        return self._failures

    def allows(self, now: float) -> bool:
        """Return whether a request may enter at `now`."""
        return self._state == "closed" or (self._state == "open" and now >= self._open_until)

    def enter(self, now: float) -> Ticket | None:
        """Let a request in, or return None. Its outcome goes to `succeeded`, `failed` or `give_back`, once."""
        if self._state == "closed":
            return Ticket(self._generation, False)
        if not self.allows(now):
            return None
        self._state = "probing"
        self._generation += 1
        return Ticket(self._generation, True)

    def succeeded(self, ticket: Ticket) -> None:
        """Count a success: failures before it count no more, and that of a probe closes the breaker."""
        if ticket.generation == self._generation and self._state != "open":
            self._state = "closed"
            self._failures = 0

    def failed(self, ticket: Ticket, now: float) -> None:
        """Count a failure. That of a probe opens the breaker again, for the whole time."""
        if ticket.generation != self._generation or self._state == "open":
            return
        self._failures += 1
        if (ticket.is_probe and self._state == "probing") or self._failures >= self._max_failures:
            self._open(now + self._open_s)

    def give_back(self, ticket: Ticket) -> None:
        """End a request that says nothing about the server. After that of a probe, the next one may enter at once."""
        if ticket.generation == self._generation and ticket.is_probe and self._state == "probing":
            self._open(self._open_until)

    def retry(self, now: float) -> None:
        """Let a probe in from `now` on, since something has changed: the server has been started again."""
        if self._state == "open":
            self._open_until = min(self._open_until, now)

    def _open(self, until: float) -> None:
        self._state = "open"
        self._open_until = until
        self._generation += 1
