"""Refusals, for clients whose request no backend can take: the reason, a status, and when to come again."""

from __future__ import annotations

import math

from eyas.router.manager.backend import Backend
from eyas.router.manager.events import Refuse
from eyas.router.manager.request import Request

__all__ = ["refusal"]

AGAIN_S = 5.0  # a guess: what is out or stopping may be back
AGAIN_SOON_S = 1.0  # a guess: what failed once, or was full, may take the next request


def refusal(
    request: Request, backends: dict[str, Backend], now: float, *, is_crowded: bool = False, is_closed: bool = False
) -> Refuse:
    """Return why `request` gets no backend: 429 for full ones, 504 for a spent budget, else 503."""
    model = request.wanted.model
    if is_closed:
        return _refuse(request, "the router is stopping", 503, AGAIN_S)
    if is_crowded:
        message = f"too many requests wait for {model!r}; try again later"
        return _refuse(request, message, 429, _place_s(request, backends))
    why = "; ".join(f"{name} {_reason(name, request, backends, now)}" for name in request.order)
    if "full" in request.tried.values():
        again_s = request.retry_after_s if math.isfinite(request.retry_after_s) else AGAIN_SOON_S
        return _refuse(request, f"no backend of {model!r} has room: {why}", 429, again_s)
    if request.is_spent:
        waited = f"waited {request.queued_s(now):.0f} s for a backend of {model!r}, which is its budget"
        return Refuse(request.number, f"{waited}: {why}", 504, code="queue_timeout")
    if request.tried and next(reversed(request.tried.values())) == "budget":
        return _refuse(request, f"no backend of {model!r} answered in time: {why}", 504, None)
    times = [_again_s(name, request, backends, now) for name in request.order]
    known = [seconds for seconds in times if seconds is not None]
    return _refuse(request, f"no backend of {model!r} can answer: {why}", 503, min(known, default=AGAIN_S))


def _refuse(request: Request, message: str, status: int, again_s: float | None) -> Refuse:
    return Refuse(request.number, message, status, None if again_s is None else max(1.0, again_s))


def _reason(name: str, request: Request, backends: dict[str, Backend], now: float) -> str:
    if (kind := request.tried.get(name)) is not None:
        return "is full" if kind == "full" else f"failed ({kind})"
    backend = backends[name]
    match backend.standing(now):
        case "open":
            return f"failed too often and is tried again in {_open_s(backend, now):.0f} s"
        case "out" if backend.condition.cause == "memory":
            return f"cannot be loaded: it {backend.condition.reason}"
        case "out":
            return "is out" if backend.condition.state == "out" else "did not become ready"
        case "idle":
            return "is not loaded"
        case "loading":
            return "is loading"
        case "free" | "busy" | "probing":
            return "is busy"


def _again_s(name: str, request: Request, backends: dict[str, Backend], now: float) -> float | None:
    """Return in how many seconds this backend may answer; None if unknown."""
    backend = backends[name]
    if backend.breaker.state == "open" and backend.condition.state != "out":
        return _open_s(backend, now)
    return AGAIN_SOON_S if name in request.tried else None


def _open_s(backend: Backend, now: float) -> float:
    until = backend.breaker.open_until
    return 0.0 if until is None else max(0.0, until - now)


def _place_s(request: Request, backends: dict[str, Backend]) -> float:
    """Return a guess when the next place is free at one of its backends."""
    found = [backends[name] for name in request.order]
    rates = [found_one.settings.concurrency / found_one.hold_s for found_one in found if found_one.hold_s]
    return 1.0 / sum(rates) if rates else AGAIN_SOON_S
