"""A thousand requests while the server is killed at random: one whole answer or one error each, and nothing left."""

import asyncio
import contextlib
import gc
import json
import random
import time
from pathlib import Path

import pytest
from tests.client.support.asked import ask, run
from tests.router.support.scripted import free_port, start_scripted

from eyas.base.serving.breaker import Breaker
from eyas.base.serving.budgets import Budgets
from eyas.client import AsyncClient
from eyas.client.errors import Broken, CircuitOpen

NUM_REQUESTS = 1000
CONCURRENCY = 64
PIECES = 12
BETWEEN_S = 0.02
FIRST_S = 0.2


def num_sockets():
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())


@pytest.mark.slow
def test_a_thousand_requests_under_kills(tmp_path):
    port, log = free_port(), tmp_path / "log"
    rng = random.Random(5)
    kills = []

    async def kill_and_start(over):
        process = start_scripted(port, "a", "--log", str(log))
        try:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rng.uniform(1, 2)):
                        await over.wait()
                process.kill()
                await asyncio.to_thread(process.wait)
                kills.append(time.monotonic())
                await asyncio.sleep(rng.uniform(0, 0.4))
                process = start_scripted(port, "a", "--log", str(log))
        finally:
            process.kill()
            process.wait()

    async def main():
        gc.collect()
        before = num_sockets()
        over, left = asyncio.Event(), iter(range(NUM_REQUESTS))
        results = {}
        breaker = Breaker(max_failures=2 * CONCURRENCY, open_s=0.5)  # so that most are tried again
        client = AsyncClient(
            f"http://127.0.0.1:{port}", model="scripted", breaker=breaker, budgets=Budgets(prefill_s=9)
        )

        async def worker():
            for number in left:
                script = {"mark": f"m{number}", "pieces": PIECES, "first_s": FIRST_S, "between_s": BETWEEN_S}
                got = await ask(client, script)
                while isinstance(got.error, CircuitOpen):
                    await asyncio.sleep(got.error.retry_in_s * rng.uniform(1, 1.5))
                    got = await ask(client, script)
                results[number] = got

        killer = asyncio.create_task(kill_and_start(over))
        async with client:
            await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
        over.set()
        await killer
        await asyncio.sleep(0.1)
        assert num_sockets() == before
        return results

    results = run(main(), 600)
    starts = {}  # of each request at the server, over all tries
    for line in map(json.loads, log.read_text().splitlines()):
        if line.get("start"):
            starts.setdefault(line["start"], []).append(line["at"])
    whole = broken = 0
    for number, got in results.items():
        expected = [f"[m{number} {at}/{PIECES}]" for at in range(1, PIECES + 1)]
        if got.error is None:
            whole += 1
            assert got.text == "".join(expected)
        else:
            broken += 1
            assert isinstance(got.error, Broken), got.error
            assert "".join(expected).startswith(got.text) and got.error.text == got.text
        assert got.first_at is None or max(starts[f"m{number}"]) < got.first_at, f"m{number} was asked again"
    again = sum(len(times) > 1 for times in starts.values())
    print(f"{len(kills)} kills, {whole} answers, {broken} errors, {again} asked more than once")
    assert len(results) == NUM_REQUESTS and len(kills) >= 3 and whole > NUM_REQUESTS / 3 and min(broken, again) > 10
