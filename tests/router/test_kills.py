"""Kills, of backends and of the router, while many ask: each gets one whole answer or one error."""

import asyncio
import itertools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from tests.router.support.asking import PATHS, Got, ask
from tests.router.support.running import RouterProcess, router_process
from tests.router.support.scripted import free_port, start_scripted, wait_until_ready

NUM_BACKENDS = 6
NUM_CLIENTS = 16
REQUESTS_PER_KILL = 30
NUM_WARM = 200
MAX_GROWTH_MIB = 32
SHARES = {PATHS[0]: 6, PATHS[1]: 1, PATHS[2]: 1, PATHS[3]: 2}


class Backend:
    """A scripted backend as a process that is killed and started again; its log outlives it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.port, self.log = name, free_port(), folder / f"{name}.jsonl"
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self.process = start_scripted(self.port, self.name, "--log", str(self.log))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def num_running(self) -> int:
        return sum(not one["ended"] for one in httpx.get(f"{self.url}/scripted/received", timeout=20).json())


@contextmanager
def fleet(folder: Path) -> Iterator[tuple[list[Backend], RouterProcess]]:
    backends = [Backend(f"b{number}", folder) for number in range(NUM_BACKENDS)]
    with ExitStack() as stack:
        for backend in backends:
            stack.callback(backend.kill)
        for backend in backends:
            wait_until_ready(backend.port)
        urls = {backend.name: backend.url for backend in backends}
        settings = {name: {"concurrency": 4} for name in urls}
        yield backends, stack.enter_context(router_process(folder, urls, backends=settings))


class Crowd:
    """Clients that ask one after the other, and what they got."""

    def __init__(self, router: RouterProcess, seed: int) -> None:
        self.router, self.rng = router, random.Random(seed)
        self.got: list[Got] = []
        self.is_up = asyncio.Event()  # the router listens
        self.is_up.set()
        self.num_refused = 0

    async def run(self, num_requests: int, num_kills: int, kill: Callable[[], Awaitable[None]]) -> None:
        """Ask `num_requests` times; `kill` is called `num_kills` times meanwhile, never twice at once."""
        start, left = len(self.got), iter(range(num_requests))
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            clients = [asyncio.create_task(self._client(session, left)) for _ in range(NUM_CLIENTS)]
            for number in range(num_kills):
                while len(self.got) - start < (number + 1) * num_requests / (num_kills + 2):
                    await asyncio.sleep(0.02)
                await kill()
            await asyncio.gather(*clients)

    async def _client(self, session: aiohttp.ClientSession, left: Iterator[int]) -> None:
        for _ in left:
            pieces = self.rng.randint(4, 16)
            script = {"mark": f"k{self.rng.getrandbits(60):x}", "pieces": pieces, "between_s": 0.06, "sign": True}
            path = self.rng.choices(list(SHARES), list(SHARES.values()))[0]
            stream = self.rng.random() < 0.5
            while True:
                await self.is_up.wait()
                got = await ask(session, self.router.url, script, path=path, stream=stream)
                if got.outcome != "refused":  # nobody was asked
                    break
                self.num_refused += 1
                await asyncio.sleep(0.02)
            self.got.append(got)


def check(got: list[Got], backends: list[Backend]) -> None:
    """No piece is lost, doubled or another's; nothing is run again once a client has seen its first piece."""
    wrong = [f"{one.path} {one.stream}: {reason}" for one in got if (reason := one.what_is_wrong())]
    starts = defaultdict(list)
    for backend in backends:
        for line in backend.lines():
            if line.get("start"):
                starts[line["start"]].append(line["at"])
    for one in got:
        if one.stream and one.first is not None and any(at > one.first for at in starts[one.mark]):
            wrong.append(f"{one.mark} is run again {max(starts[one.mark]) - one.first:.3f} s after its first piece")
        if one.outcome == "done" and not starts[one.mark]:
            wrong.append(f"{one.mark} was answered, but never run")
    assert not wrong, (len(wrong), wrong[:10])
    assert len({one.mark for one in got}) == len(got)


def show(title: str, got: list[Got]) -> None:
    outcomes = Counter((one.outcome, one.status, "streamed" if one.stream else "whole") for one in got)
    print(f"\n{title}: {len(got)} requests")
    for (outcome, status, kind), count in sorted(outcomes.items(), key=str):
        print(f"  {kind:<9} {status} {outcome:<7} {count}")
    messages = Counter(one.message[:110] for one in got if one.outcome == "error")
    for message, count in messages.most_common(6):
        print(f"  {count:>5} x {message}")


def wait_until_nothing_runs(router: RouterProcess, backends: list[Backend]) -> None:
    end = time.monotonic() + 20
    while True:
        status = router.status()
        in_flight = sum(one["in_flight"] for one in status["backends"])
        queued = sum(one["queued"] for one in status["models"])
        running = sum(backend.num_running() for backend in backends)
        if in_flight == queued == running == 0:
            return
        assert time.monotonic() < end, (in_flight, queued, running)
        time.sleep(0.1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "num_kills", [pytest.param(15, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.soak)]
)
def test_kills_of_each_kind(tmp_path, num_kills):
    num_requests = num_kills * REQUESTS_PER_KILL
    rng = random.Random(19)
    with fleet(tmp_path) as (backends, router):
        turns = itertools.cycle(rng.sample(backends, NUM_BACKENDS))

        async def kill_a_backend() -> None:
            backend = next(turns)
            backend.kill()
            await asyncio.sleep(rng.random() * 0.5)
            backend.start()
            await asyncio.to_thread(wait_until_ready, backend.port)  # the router has not seen that yet

        async def kill_the_router() -> None:
            crowd.is_up.clear()
            router.kill()
            router.start()
            await asyncio.to_thread(router.until_up)
            crowd.is_up.set()

        async def play() -> None:
            nonlocal crowd
            crowd = Crowd(router, 19)
            await crowd.run(NUM_WARM, 0, kill_a_backend)
            sizes.append(router.rss_mib())
            await crowd.run(num_requests, num_kills, kill_a_backend)
            wait_until_nothing_runs(router, backends)
            sizes.append(router.rss_mib())
            show("backends killed", crowd.got[NUM_WARM:])
            await crowd.run(num_requests, num_kills, kill_the_router)

        crowd, sizes = None, []
        began = time.monotonic()
        asyncio.run(play())
        wait_until_nothing_runs(router, backends)
        first, second = crowd.got[NUM_WARM:-num_requests], crowd.got[-num_requests:]
        show("router killed", second)
        print(f"{time.monotonic() - began:.0f} s; RSS {sizes[0]:.0f} -> {sizes[1]:.0f} MiB")
        check(crowd.got, backends)
        assert {one.outcome for one in first} == {"done", "error"}
        assert sizes[1] - sizes[0] < MAX_GROWTH_MIB
        # Whoever had seen nothing was answered by another backend.
        lost = [one for one in first if one.outcome == "error" and not one.pieces]
        assert not lost, (len(lost), lost[:3])
        broken = [one for one in second if one.outcome != "done"]
        assert len(broken) <= num_kills * NUM_CLIENTS and len(second) == num_requests
