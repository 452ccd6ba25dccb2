"""A client that leaves frees its backend at once, whatever it was waiting for."""

import asyncio
import json
import time

import aiohttp
import pytest
from tests.router.support.asking import PATHS, ask, body_of
from tests.router.support.relayed import Relayed, relayed
from tests.router.support.scripted import Script, ScriptedBackend

from eyas.base.serving.budgets import Budgets

SOON_S = 1.0


async def until(condition, seconds: float = SOON_S) -> None:
    """Wait until `condition()`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def read(url: str, body: dict) -> None:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        await response.read()


async def leave(router: Relayed, backend: ScriptedBackend, script: dict, *, path: str, stream: bool) -> None:
    """Ask, leave when the backend has begun, and wait until everything is free."""
    num_before = len(router.outcomes)
    body = body_of(path, "scripted", json.dumps(script), stream)
    asking = asyncio.create_task(read(router.url + path, body))
    await until(lambda: backend.num_running() == 1, 5)
    await asyncio.sleep(0.1)
    asking.cancel()
    await until(lambda: backend.num_running() == 0)
    await until(lambda: router.in_flight() == 0)
    await until(lambda: len(router.outcomes) == num_before + 1)
    assert backend.asked[-1].ended == "left"
    assert router.outcomes[-1].status == 499
    assert router.failures() == []


@pytest.mark.parametrize(
    ("script", "stream"),
    [
        ({"before_s": 30}, True),
        ({"before_s": 30}, False),
        ({"first_s": 30}, True),
        ({"first_s": 30, "noise_s": 0.02}, True),
        ({"pieces": 1000, "between_s": 0.05}, True),
        ({"end": "hang", "after": 1}, True),
        ({"first_s": 30}, False),
    ],
    ids=str,
)
def test_the_backend_is_free_at_once(script: dict, stream: bool) -> None:
    async def main() -> None:
        backend = ScriptedBackend()  # not ours: messages are translated
        async with backend.serving(), relayed(backend) as router:
            for path in (PATHS[0], PATHS[3]):
                await leave(router, backend, script, path=path, stream=stream)
            got = await ask(router.session, router.url, {"mark": "m1"})
            assert got.outcome == "done"

    asyncio.run(main())


def test_a_client_that_leaves_the_queue() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving(), relayed(backend) as router:
            slow = [asyncio.create_task(ask(router.session, router.url, {"first_s": 0.5})) for _ in range(8)]
            await until(lambda: backend.num_running() == 8, 5)
            asking = asyncio.create_task(read(router.url + PATHS[0], body_of(PATHS[0], "scripted", "{}", True)))
            await until(lambda: router.manager.snapshot().queued["scripted"] == 1)
            asking.cancel()
            await until(lambda: router.manager.snapshot().queued["scripted"] == 0)
            assert [one.outcome for one in await asyncio.gather(*slow)] == ["done"] * 8
            assert len(backend.asked) == 8

    asyncio.run(main())


def test_a_client_that_reads_slowly_spends_no_budget_of_the_backend() -> None:
    async def main() -> None:
        backend = ScriptedBackend(script=Script(pieces=400, text="lorem ipsum " * 2_000_000))
        async with backend.serving(), relayed(backend, budgets=Budgets(prefill_s=5, stall_s=0.3)) as router:
            body = body_of(PATHS[0], "scripted", "hello", True)
            async with router.session.post(router.url + PATHS[0], json=body) as response:
                await asyncio.sleep(1.0)
                raw = await response.read()
            assert raw.endswith(b"data: [DONE]\n\n")
            assert router.failures() == []

    asyncio.run(main())
