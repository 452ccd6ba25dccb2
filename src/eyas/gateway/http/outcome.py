"""The outcome of one engine request: the one record behind metrics, the access log and the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CLIENT_LEFT", "Listener", "Outcome"]

CLIENT_LEFT = 499  # nginx's status for a client that closed the connection before its answer was complete


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Reported once for each engine request, when it is over; a request refused before that has no outcome.

    `status` is 200, the HTTP status of the error that ended it (even if the headers had already been sent with 200), or
    CLIENT_LEFT. `finishes` has the reason of each choice that ended. Numbers are sums over the choices.
    `max_num_tokens` is that of the longest choice. Times are in seconds from submitting: to the launch of the first
    step (`queue_s`), the first token (`ttft_s`, None if none came), the last one (`last_s`), the end (`e2e_s`).
    """

    request_id: str
    route: str
    status: int
    finishes: tuple[str, ...] = ()
    num_prompt: int = 0
    num_cached: int = 0
    num_tokens: int = 0
    max_num_tokens: int = 0
    num_reasoning: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    max_tokens: int | None = None
    n: int = 1
    queue_s: float = 0.0
    ttft_s: float | None = None
    last_s: float = 0.0
    e2e_s: float = 0.0
    error: str | None = None


Listener = Callable[[Outcome], None]
