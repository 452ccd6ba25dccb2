"""Backends in a pool, with real processes and real memory: loaded when asked for, unloaded for others, taken over."""

import asyncio

import pytest
from tests.router.support.pooled import Ballast, pooled, write_file


@pytest.mark.slow
def test_they_take_turns_and_all_requests_are_answered(lab):
    engines = [Ballast("a", 40), Ballast("b", 40), Ballast("c", 10, more={"pinned": True})]
    path = write_file(lab.tmp, engines, 140, lab.journal)

    async def main():
        async with pooled(path) as box:
            await box.until(lambda: box.state("c") == "ready")
            assert box.loaded() == {"c"} and box.state("a") == "idle"
            assert (await box.ask("a"))[0] == 200
            assert box.loaded() == {"a", "c"}
            assert (await box.ask("b"))[0] == 200
            assert box.loaded() == {"b", "c"}
            assert box.notes("load") == ["c", "a", "b"] and box.notes("unload") == ["a"]
            assert box.notes("unloaded") == ["a"] and not box.notes("late"), box.told()
            await box.until(lambda: box.router.orchestrator.pools[0].policy.members["b"].footprint.is_learnt)
            box.router.backends.watcher("c").looped()  # its plan has no speculation to go without
            await box.until(lambda: box.state("c") == "out")
            box.router.orchestrator.order("c", "load")
            await box.until(lambda: box.state("c") == "ready")
            assert box.notes("load") == ["c", "a", "b"]

    asyncio.run(main())
    assert sorted(line["name"] for line in lab.journal_lines()) == ["a", "b", "c"]

    async def again():
        """What runs is taken over, with what was learnt of it."""
        async with pooled(path) as box:
            await box.until(lambda: box.loaded() == {"b", "c"})
            assert not box.notes("load") and box.state("a") == "idle"
            policy = box.router.orchestrator.pools[0].policy
            assert policy.members["b"].footprint.is_learnt
            assert (await box.ask("a"))[0] == 200
            assert box.notes("unload") == ["b"]

    asyncio.run(again())
    assert sorted(line["name"] for line in lab.journal_lines()) == ["a", "a", "b", "c"]


@pytest.mark.slow
def test_an_emergency_cuts_an_answer_and_the_request_is_answered_all_the_same(lab):
    """Two that fit as declared: one is asked, the other takes four times as much while it loads."""
    engines = [Ballast("a", 60, answer_s=3.0), Ballast("b", 30, peak=200, load_s=1.0, declared=0.25)]
    path = write_file(lab.tmp, engines, 200, lab.journal)

    async def main():
        async with pooled(path) as box:
            first = asyncio.create_task(box.ask("a"))
            await box.until(lambda: box.router.num_in_flight() and box.loaded() == {"a"})
            second = asyncio.create_task(box.ask("b"))
            assert (await first)[0] == 200, box.told()
            assert any(text.startswith("unload a: emergency") for text in box.told()), box.told()
            assert (await second)[0] == 503  # it can never fit

    asyncio.run(main())
    assert [line["name"] for line in lab.journal_lines()].count("a") == 2
