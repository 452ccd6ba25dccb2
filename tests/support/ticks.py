"""Servers of uvicorn in this process end within 20 ms, not 200: a run starts hundreds."""

import asyncio
from typing import Any

from uvicorn import server

TICK_S = 0.01


class _Asyncio:
    """The module as the server of uvicorn sees it: what slept for 100 ms sleeps for 10."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, TICK_S))


def shorten() -> None:
    server.asyncio = _Asyncio()
