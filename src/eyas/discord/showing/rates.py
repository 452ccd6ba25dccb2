"""Hears what Discord's headers say of its limits, which the library keeps to itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from types import SimpleNamespace
from typing import get_args

import aiohttp

from eyas.base.serving.retry_after import retry_after_s
from eyas.discord.metrics import Scope
from eyas.discord.pacer import Rate

__all__ = ["Heard", "trace"]

EXEMPT = ("/interactions/", "/webhooks/")  # from the limit over all routes
_HEARD: ContextVar[Heard | None] = ContextVar("heard", default=None)


@dataclass(slots=True)
class Heard:
    """Limits that the answers to the requests of one task have named.

    `answered` is called for each answer: the library itself may return from a request much later, as a limit says.
    """

    rate: Rate | None = None
    answered: Callable[[], None] | None = None

    @classmethod
    def here(cls, answered: Callable[[], None] | None = None) -> Heard:
        """Return what will be heard in this task from now on."""
        heard = cls(answered=answered)
        _HEARD.set(heard)
        return heard

    def take(self, headers: Mapping[str, str]) -> None:
        """Take in the headers of an answer."""
        try:
            remaining, reset_after_s = headers["X-RateLimit-Remaining"], headers["X-RateLimit-Reset-After"]
            self.rate = Rate(remaining=int(remaining), reset_after_s=float(reset_after_s))
        except (KeyError, ValueError):
            self.rate = None
        if self.answered is not None:
            self.answered()


def trace(limited: Callable[[Scope, float], None], may_go: Callable[[], Awaitable[None]]) -> aiohttp.TraceConfig:
    """Return what the library's session calls: `may_go` before a request, `limited` for each 429, with its time."""

    async def started(
        session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestStartParams
    ) -> None:
        # each request that goes out, the tries of the library itself included
        if not any(part in params.url.path for part in EXEMPT):
            await may_go()

    async def ended(
        session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        if params.response.status == HTTPStatus.TOO_MANY_REQUESTS:
            headers = params.response.headers
            limited(_scope_of(headers.get("X-RateLimit-Scope", "")), retry_after_s(headers) or 0.0)
        if (heard := _HEARD.get()) is not None:
            heard.take(params.response.headers)

    config = aiohttp.TraceConfig()
    config.on_request_start.append(started)
    config.on_request_end.append(ended)
    return config


def _scope_of(text: str) -> Scope:
    return next((scope for scope in get_args(Scope) if scope == text), "user")
