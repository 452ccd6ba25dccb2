"""Faults of backends, live: what the client gets, when, and what the breaker makes of it. `-s` shows the tables."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from tests.router.support.asking import PATHS, Got, ask
from tests.router.support.faults import FAULTS, INSIDE, PREFILL_S, STALL_S, TOTAL_S, Row, table
from tests.router.support.inside import Clock, Inside, router_inside, settings_of
from tests.router.support.running import RouterProcess, router_process
from tests.router.support.scripted import Script, ScriptedBackend

from eyas.router.manager.condition import Condition

BUDGETS = {"queue": 5, "prefill": PREFILL_S, "stall": STALL_S, "total": TOTAL_S}
MODELS = {"both": ["faulty", "sound"], "alone": ["faulty"], "sound": ["sound"]}


@dataclass
class Pair:
    """A router in front of a backend that does as it is told, and a sound one."""

    router: RouterProcess
    faulty: ScriptedBackend
    sound: ScriptedBackend

    async def ask(self, session: aiohttp.ClientSession, model: str, fault: dict, **options) -> Got:
        return await ask(
            session, self.router.url, {"mark": "m", "sign": True, "on": {"faulty": fault}}, model=model, **options
        )


@contextmanager
def new_pair(folder: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        faulty, sound = (stack.enter_context(ScriptedBackend(name).in_thread()) for name in ("faulty", "sound"))
        urls = {"faulty": faulty.url, "sound": sound.url}
        backends = {"faulty": {"budgets": BUDGETS, "concurrency": 64}}
        router = stack.enter_context(router_process(folder, urls, backends=backends, models=MODELS))
        yield Pair(router, faulty, sound)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[Pair]:
    with new_pair(tmp_path_factory.mktemp("router")) as one:
        yield one


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


def breaker_of(router: RouterProcess, name: str = "faulty") -> tuple[str, int]:
    now = router.backend(name)
    return f"{now['breaker']}, {now['failures']} in a row", now["failures"]


def test_the_table_of_faults(pair, tmp_path):
    async def play(pair: Pair, others: bool) -> list[Row]:
        rows = []
        async with client() as session:
            for fault in FAULTS:
                for stream in fault.streams:
                    got = await pair.ask(session, "both" if others else "alone", fault.script, stream=stream)
                    text, failures = breaker_of(pair.router)
                    rows.append(row := Row(fault, stream, others, got, text))
                    row.check(failures)
                    await until_idle(pair.router)
                    assert (await pair.ask(session, "alone", {})).outcome == "done"  # failures in a row end here
        return rows

    async def play_all() -> list[Row]:
        with new_pair(tmp_path) as second:  # most of the time is budgets that run out
            with_others, alone = await asyncio.gather(play(pair, True), play(second, False))
        return [row for both in zip(with_others, alone, strict=True) for row in both]

    rows = asyncio.run(play_all())
    print(f"\n{table(rows)}")
    assert not [row for row in rows if row.wrong]


async def until_idle(router: RouterProcess) -> None:
    """Wait until no backend has a request of the router."""
    end = time.monotonic() + 5
    while any(one["in_flight"] for one in router.status()["backends"]):
        assert time.monotonic() < end, router.status()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", PATHS[1:])
def test_faults_in_other_dialects(pair, path):
    async def play() -> None:
        async with client() as session:
            for stream in (True, False):
                assert (await pair.ask(session, "alone", {}, path=path)).outcome == "done"  # ends failures in a row
                before = await pair.ask(session, "both", {"status": 500}, path=path, stream=stream)
                assert (before.outcome, before.backend, before.what_is_wrong()) == ("done", "sound", None)
                refused = await pair.ask(session, "alone", {"end": "rst"}, path=path, stream=stream)
                assert refused.outcome == "error" and refused.status in (502, 503, 529), refused  # Anthropic has 529
            assert (await pair.ask(session, "alone", {}, path=path)).outcome == "done"
            inside = await pair.ask(session, "both", {"end": "rst", **INSIDE}, path=path, stream=True)
            assert (inside.outcome, len(inside.pieces), inside.what_is_wrong()) == ("error", 2, None), inside
            assert (await pair.ask(session, "alone", {}, path=path)).outcome == "done"

    asyncio.run(play())


def test_the_sixth_request_never_reaches_the_backend(tmp_path):
    async def play(router: RouterProcess) -> None:
        async with client() as session:
            for _ in range(5):
                assert (await ask(session, router.url, {"status": 500})).status == 503
            assert breaker_of(router)[0].startswith("open") and len(faulty.asked) == 5
            for stream in (True, False):
                got = await ask(session, router.url, {}, stream=stream)
                assert got.status == 503 and 1 <= int(got.headers["retry-after"]) <= 60, got
            assert len(faulty.asked) == 5 and breaker_of(router)[0].startswith("open")

    with ScriptedBackend("faulty").in_thread() as faulty, router_process(tmp_path, {"faulty": faulty.url}) as router:
        asyncio.run(play(router))


@dataclass
class Opened:
    """A router whose only backend has failed five times, and the clock of its breaker."""

    router: Inside
    backend: ScriptedBackend
    clock: Clock

    async def fifty(self, session: aiohttp.ClientSession) -> list[asyncio.Task[Got]]:
        """Ask fifty times at once; one of them is at the backend, or was before, and the others wait."""
        self.backend.is_held = True
        at_backend = len(self.backend.asked)
        is_probing = self.router.snapshot().backends["faulty"].in_flight
        tasks = [asyncio.create_task(ask(session, self.router.url, {"mark": f"p{number}"})) for number in range(50)]
        await eventually(lambda: self.router.snapshot().queued == {"scripted": 49 + is_probing})
        await eventually(lambda: len(self.backend.asked) == at_backend + 1 - is_probing)
        assert self.router.snapshot().backends["faulty"].breaker == "probing"
        return tasks


async def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


@asynccontextmanager
async def opened(session: aiohttp.ClientSession) -> AsyncIterator[Opened]:
    ready = {"faulty": Condition(state="ready", model="scripted")}
    with ScriptedBackend("faulty", script=Script(status=500)).in_thread() as backend:
        clock, settings = Clock(), settings_of({"faulty": backend.url}, "scripted", concurrency=64)
        with router_inside(settings, ready, clock) as router:
            for _ in range(5):
                assert (await ask(session, router.url, {})).status == 503
            assert router.snapshot().backends["faulty"].breaker == "open"
            yield Opened(router, backend, clock)


@pytest.mark.parametrize("is_well", [True, False], ids=["it answers", "it fails"])
def test_when_the_time_is_up_one_of_fifty_goes_in(is_well):
    async def play() -> None:
        async with client() as session, opened(session) as now:
            now.clock.ahead_s = 30.0
            early = await asyncio.gather(*(ask(session, now.router.url, {}) for _ in range(50)))
            assert {one.status for one in early} == {503} and len(now.backend.asked) == 5
            assert max(int(one.headers["retry-after"]) for one in early) <= 30

            now.backend.script, now.clock.ahead_s = Script() if is_well else Script(status=500), 60.0
            tasks = await now.fifty(session)
            now.backend.is_held = False
            got = await asyncio.gather(*tasks)
            breaker = now.router.snapshot().backends["faulty"].breaker
            if is_well:
                assert {one.outcome for one in got} == {"done"} and len(now.backend.asked) == 55 and breaker == "closed"
            else:
                assert {one.outcome for one in got} == {"error"} and len(now.backend.asked) == 6 and breaker == "open"

    asyncio.run(play())


def test_a_probe_whose_client_leaves_gives_its_place_to_another():
    async def play() -> None:
        async with client() as session, opened(session) as now:
            now.backend.script, now.backend.is_held, now.clock.ahead_s = Script(), True, 60.0
            first = asyncio.create_task(ask(session, now.router.url, {"mark": "first"}))
            await eventually(lambda: now.backend.asked[-1].mark == "first")
            tasks = await now.fifty(session)
            first.cancel()
            await eventually(lambda: len(now.backend.asked) == 7)
            assert now.backend.asked[5].ended == "left"
            now.backend.is_held = False
            assert {one.outcome for one in await asyncio.gather(*tasks)} == {"done"}

    asyncio.run(play())
