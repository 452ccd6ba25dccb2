"""Backends that are started here: brought up, taken over, stopped, restarted without speculation; no plan run twice."""

import asyncio
import os
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from tests.fleet.support.lab import engine, free_port, is_alive, make_plan, write_plan
from tests.router.support.watched import FAST, settings_of, watched

from eyas.base.errors import UserError
from eyas.fleet.preflight.plan_file import read_plan
from eyas.fleet.running.state import holder
from eyas.recipes.plan import Launch
from eyas.router.backends.backends import Backends
from eyas.router.backends.planned import Planned, claim
from eyas.router.manager.happenings import Happening
from eyas.router.settings.schema import BackendSettings

LOOPS = Happening(time_s=0.0, kind="loops", backend="a")


def planned(file, name="a"):
    plan = read_plan(file)
    return BackendSettings(name=name, url=f"http://127.0.0.1:{plan.choice.port}", plan=file, model="demo")


def pids(lab):
    return [line["pid"] for line in lab.journal_lines()]


def plainly(plan):
    """The same plan without speculation, as far as a fake engine can have one."""
    launch = msgspec.structs.replace(plan.emission.launches[0], name="plain")
    return msgspec.structs.replace(plan, emission=msgspec.structs.replace(plan.emission, launches=(launch,)))


def test_it_is_started_outlives_the_router_and_is_taken_over(lab):
    one = planned(lab.plan())

    async def first():
        async with watched(one) as seen:
            await seen.until("ready")
            assert seen.states()[:2] == ["loading", "ready"] and seen.reports["a"][0].reason == "is being started"
            etas = [report.eta_s for report in seen.reports["a"] if report.state == "loading" and report.eta_s]
            assert etas and max(etas) <= 240  # 120 for the launch, 120 for the server
            with pytest.raises(UserError, match=rf"backend a \(lab\) is run by another router, process {os.getpid()};"):
                Backends(settings_of(one), environ=os.environ, report=seen.report)

    async def second():
        async with watched(one) as seen:
            await seen.until("ready")
            await seen.backends.stop("a")
            assert (seen.now().state, seen.now().cause) == ("out", "stopped")
            await seen.until_true(lambda: lab.row().status == "stopped")
            assert seen.now().state == "out"

    asyncio.run(first())
    (pid,) = pids(lab)
    assert is_alive(pid) and lab.row().status == "ready"
    asyncio.run(second())
    assert pids(lab) == [pid] and not is_alive(pid)


def test_another_plan_of_the_name_keeps_the_router_from_starting(lab):
    lab.up(lab.plan())
    other = lab.plan("--children")
    with pytest.raises(UserError, match="lab is up with another plan; stop it first: eyas down lab"):
        Backends(settings_of(planned(other)), environ=os.environ, report=lambda name, condition: None)
    os.close(*claim(lab.home, {"a": "lab"}))  # nothing is held


def test_no_plan_is_taken_where_one_is_taken_already(tmp_path):
    held = claim(tmp_path, {"a": "one"})
    with pytest.raises(UserError, match=r"backend b \(one\)"):
        claim(tmp_path, {"c": "two", "b": "one"})
    held += claim(tmp_path, {"c": "two"})
    for one in held:
        os.close(one)
    os.close(*claim(tmp_path, {"b": "one"}))


def test_a_plan_that_cannot_start(lab):
    one = planned(lab.plan("--exit", 1))

    async def test():
        async with watched(one) as seen:
            condition = await seen.until("out", cause="failed")
            assert "server ended with exit code 1" in condition.reason

    asyncio.run(test())


def test_a_start_that_is_refused_says_why(lab):
    port = free_port()
    one = planned(lab.plan(port=port))

    async def test():
        blocker = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)
        async with blocker, watched(one) as seen:
            condition = await seen.until("out", cause="failed")
            assert str(port) in condition.reason and "nothing was started" in condition.reason
        assert lab.row() is None

    asyncio.run(test())


@pytest.mark.slow
def test_a_person_stops_the_deployment(lab):
    one = planned(lab.plan())

    async def test():
        async with watched(one) as seen:
            await seen.until("ready")
            await asyncio.to_thread(lab.down)
            condition = await seen.until("out", cause="stopped")
            assert condition.reason == "its deployment was stopped"
            await seen.backends.start("a")
            await seen.until("ready")
            assert len(pids(lab)) == 2

    asyncio.run(test())


def test_after_loops_it_restarts_without_speculation_and_stays_so(lab):
    one = planned(lab.plan())
    make = partial(Planned, replan=plainly)
    running = 1

    async def first():
        nonlocal running
        async with watched(one, make=make, num_in_flight=lambda name: running) as seen:
            await seen.until("ready")
            seen.backends.happened(LOOPS)
            assert seen.now().state == "loading" and "restarts without speculation" in seen.now().reason
            await asyncio.sleep(0.1)
            assert is_alive(pids(lab)[0])  # an answer is still running
            running = 0
            await seen.until("ready")
            assert lab.row().plan.emission.launches[0].name == "plain"

    async def second():
        async with watched(one, make=make) as seen:
            await seen.until("ready")
            await seen.until_true(lambda: len(pids(lab)) == 2)
            seen.backends.happened(LOOPS)  # it was not the speculation
            assert (seen.now().state, seen.now().cause) == ("out", "loops")

    asyncio.run(first())
    asyncio.run(second())
    assert len(pids(lab)) == 2


def test_a_plan_that_cannot_be_made_without_speculation_is_taken_out(lab):
    one = planned(lab.plan())

    async def test():
        async with watched(one) as seen:
            await seen.until("ready")
            seen.backends.happened(LOOPS)
            condition = await seen.until("out", cause="loops")
            assert condition.reason.endswith(
                "and it cannot restart without speculation: lab runs without speculation already"
            )
            assert is_alive(pids(lab)[0])

    asyncio.run(test())


@pytest.mark.slow
def test_an_engine_that_crashes_is_asked_again(lab):
    crash = lab.tmp / "crash"
    one = planned(lab.plan("--crash-file", crash))

    async def test():
        async with watched(one) as seen:
            await seen.until("ready")
            crash.touch()
            await seen.until_true(lambda: seen.now().state != "ready")
            crash.unlink()
            await seen.until("ready")
            assert seen.states()[-2:] == ["loading", "ready"] and len(pids(lab)) == 2

    asyncio.run(test())


@pytest.mark.slow
def test_a_supervisor_that_is_killed_is_replaced(lab):
    one = planned(lab.plan())

    async def test():
        async with watched(one, pace=replace(FAST, takeover_s=0.5)) as seen:
            await seen.until("ready")
            supervisor = holder(lab.home, "lab")
            os.kill(supervisor, 9)
            await seen.until_true(lambda: holder(lab.home, "lab") not in (None, supervisor))
            await seen.until("ready")
        assert len(pids(lab)) == 1

    asyncio.run(test())


@pytest.mark.slow
def test_two_plans(lab):
    port = free_port()
    launch = Launch(name="server", argv=engine("--port", port, "--answer", "garbage"))
    bad = write_plan(lab.tmp / "bad.yaml", make_plan(lab.tmp / "bad", port, [launch], name="bad"))

    async def test():
        async with watched(planned(lab.plan()), planned(bad, "b")) as seen:
            await seen.until("ready")
            condition = await seen.until("out", "b", cause="failed")  # fleet's own canary
            assert "garbage came back" in condition.reason

    asyncio.run(test())
