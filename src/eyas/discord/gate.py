"""Keeps all requests of the bot below Discord's limit over all routes, of which no header tells before it is reached.

Discord takes 50 requests a second from a bot (https://discord.com/developers/docs/topics/rate-limits#global-rate-limit).
Pure: times come from the caller, in seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Gate"]

PER_SECOND = 40  # what is left is for delays on the way
WINDOW_S = 1.0


class Gate:
    """Lets `per_second` requests through in any second, and none while it is closed."""

    def __init__(self, per_second: int = PER_SECOND) -> None:
        self._taken: deque[float] = deque(maxlen=per_second)
        self._closed_until = float("-inf")

    def opens_at(self, now: float) -> float:
        """Return when the next request may go: `now`, or later."""
        is_full = len(self._taken) == self._taken.maxlen
        return max(now, self._closed_until, self._taken[0] + WINDOW_S if is_full else now)

    def take(self, now: float) -> None:
        """Count a request that goes."""
        self._taken.append(now)

    def close(self, until: float) -> None:
        """Let nothing through for a while, since Discord says so."""
        self._closed_until = max(self._closed_until, until)
