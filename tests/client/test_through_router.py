"""The client behind the real router: what it waits for, in the router's words, and which budget that spends."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from tests.client.support.asked import ask, run
from tests.router.support.inside import router_inside, settings_of
from tests.router.support.script import Script
from tests.router.support.scripted import ScriptedBackend

from eyas.base.serving.budgets import Budgets
from eyas.client import AsyncClient
from eyas.client.errors import ServerBusy, TimedOut
from eyas.client.pieces import Content, Waiting
from eyas.router.manager.condition import Condition

READY = Condition(state="ready", model="scripted")
LOADING = Condition(state="loading", eta_s=30.0)
LATE_S = 0.5


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyas.router.relay.client.FIRST_COMMENT_S", 0.2)
    monkeypatch.setattr("eyas.router.relay.client.COMMENT_EVERY_S", 0.2)


@asynccontextmanager
async def routed(condition=READY, script=None, **rest):
    """A client of a router with one scripted backend that takes one request at a time."""
    backend = ScriptedBackend(script=script)
    async with backend.serving():
        settings = settings_of({"engine": backend.url}, "scripted", concurrency=1, **rest)
        with router_inside(settings, {"engine": condition}) as router:
            async with AsyncClient(router.url, model="scripted", max_tries=1) as client:
                yield client, router, backend


def test_three_states_in_their_order():
    async def main():
        script = Script(mark="m1", first_s=0.8)
        async with routed(LOADING, script) as (client, router, backend):
            first = asyncio.create_task(ask(client))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(ask(client))
            await asyncio.sleep(0.5)
            router.loop.call_soon_threadsafe(router.manager.report, "engine", READY)
            got = await second
            states = list(dict.fromkeys(one.state for one in got.waits))
            assert states == ["loading", "queued", "reading"], got.waits
            assert next(one for one in got.waits if one.state == "queued").position == 1
            assert next(one for one in got.waits if one.state == "loading").eta_s > 20
            assert got.end.backend == "engine" and got.text.startswith("[m1 1/4]")
            assert (await first).error is None and len(backend.asked) == 2

    run(main())


@pytest.mark.parametrize(("state", "budgets", "span", "seconds"), [
    ("queued", {"queue_s": 0.6}, "queue", 0.6),
    ("reading", {"prefill_s": 0.6}, "prefill", 0.6),
    ("loading", {"queue_s": 0.5, "prefill_s": 0.8}, None, None),
    ("loading", {"total_s": 0.6}, "total", 0.6),
])  # fmt: skip
def test_what_the_router_says_decides_which_budget_runs(state, budgets, span, seconds):
    async def main():
        condition = LOADING if state == "loading" else READY
        async with (
            routed(condition, Script(mark="m1", first_s=9)) as (client, _, backend),
            asyncio.TaskGroup() as group,
        ):
            others = [group.create_task(ask(client))] if state == "queued" else []
            await asyncio.sleep(0.1)
            asking = asyncio.create_task(ask(client, budgets=Budgets().with_spans(budgets)))
            got = None
            if span is None:  # the load is charged to neither
                done, _ = await asyncio.wait([asking], timeout=1.5)
                assert not done
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            else:
                got = await asking
                assert type(got.error) is TimedOut and got.error.span == span
                assert seconds <= got.seconds + 1e-3 and got.seconds < seconds + LATE_S
                assert {one.state for one in got.waits} == {state}
            for other in others:
                other.cancel()
            while backend.num_running():
                await asyncio.sleep(0.01)

    run(main())


def test_leaving_the_queue_leaves_no_trace():
    async def main():
        async with routed(READY, Script(mark="m1", first_s=0.6)) as (client, router, backend):
            first = asyncio.create_task(ask(client))
            await asyncio.sleep(0.1)
            pieces = client.stream("Hi")
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, Waiting):
                        break
            assert (await first).error is None
            await asyncio.sleep(0.1)
            snapshot = await asyncio.to_thread(router.snapshot)
            assert len(backend.asked) == 1 and snapshot.queued["scripted"] == 0
            assert snapshot.backends["engine"].in_flight == 0

    run(main())


@pytest.mark.parametrize("first_s", [0.0, 0.5])
def test_a_backend_without_room_is_busy_before_and_inside_a_stream(first_s):
    async def main():
        async with routed(READY, Script(before_s=first_s, status=429, retry_after="7")) as (client, _, _backend):
            got = await ask(client)
            assert type(got.error) is ServerBusy and client.breaker.failures == 0
            assert got.error.retry_after_s == (None if first_s else 7.0)
            assert bool(got.waits) == bool(first_s) and not any(isinstance(piece, Content) for piece in got.pieces)

    run(main())
