"""Hears what Discord's headers say of its limits, which the library keeps to itself."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

from eyas.discord.pacer import Rate

__all__ = ["Heard", "trace"]

_HEARD: ContextVar[Heard | None] = ContextVar("heard", default=None)


@dataclass(slots=True)
class Heard:
    """What the answers to the requests of one task have said; `num_limited` counts its 429s.

    `answered` is called for each answer: the library itself may return from a request much later, as a limit says.
    """

    rate: Rate | None = None
    num_limited: int = 0
    answered: Callable[[], None] | None = None

    @classmethod
    def here(cls, answered: Callable[[], None] | None = None) -> Heard:
        """Return what will be heard in this task from now on."""
        heard = cls(answered=answered)
        _HEARD.set(heard)
        return heard


def trace() -> aiohttp.TraceConfig:
    """Return what the library's session is to call for each answer."""
    config = aiohttp.TraceConfig()
    config.on_request_end.append(_ended)
    return config


async def _ended(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
) -> None:
    heard = _HEARD.get()
    if heard is None:
        return
    if heard.answered is not None:
        heard.answered()
    headers = params.response.headers
    heard.num_limited += params.response.status == 429
    try:
        heard.rate = Rate(
            remaining=int(headers["X-RateLimit-Remaining"]), reset_after_s=float(headers["X-RateLimit-Reset-After"])
        )
    except (KeyError, ValueError):
        heard.rate = None
