"""Servers of uvicorn in the tests' processes do not sleep long before they see that they shall end."""

import asyncio
import socket

import uvicorn
from tests.support.ticks import TICK_S


async def nothing(scope, receive, send) -> None:
    raise AssertionError("nobody asks")


def test_no_sleep_of_a_server_is_long(monkeypatch):
    slept, sleep = [], asyncio.sleep

    async def recorded(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", recorded)

    async def main() -> None:
        server = uvicorn.Server(uvicorn.Config(nothing, lifespan="off"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            while not slept:
                await sleep(0)
            server.should_exit = True
            await serving

    asyncio.run(main())
    assert len(slept) > 1 and max(slept) <= TICK_S
