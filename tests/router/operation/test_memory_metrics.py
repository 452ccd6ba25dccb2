"""Metrics of pools: who holds how much, what happened to backends, and how long memory took to come back."""

import asyncio
import math

import pytest
from tests.router.operation.test_metrics import scraped
from tests.router.support.operated import operated
from tests.router.support.spark import GIB, spark_pool, spark_settings, unmeasured

from eyas.router.manager.condition import Condition
from eyas.router.manager.happenings import Happening


def note(kind, backend="small", seconds=None):
    return Happening(time_s=1.0, kind="memory", memory=kind, backend=backend, text="a text", seconds=seconds)


def scrape(pool, *events, states=()):
    async def main():
        async with operated(spark_settings(), pools=(pool,)) as one:
            for event in events:
                one.operation.happened(event)
            for name, state in states:
                one.manager.report(name, Condition(state=state))
            return await scraped(one)

    return asyncio.run(main())


def test_memory_by_owner_and_footprints():
    found = scrape(spark_pool(large=61, small=14, others=21.5, level="critical"))
    assert found["eyas:router_memory_total_bytes", "pool=spark"] == int(119.7 * GIB)
    owners = {"others": 21.5, "large": 61, "small": 14, "eyes": 0}
    for owner, size in owners.items():
        assert found["eyas:router_memory_bytes", f"owner={owner}", "pool=spark"] == size * GIB
    for level in ("normal", "warning", "critical", "emergency"):
        assert found["eyas:router_memory_pressure", f"level={level}", "pool=spark"] == (level == "critical")
    for kind in ("some", "full"):
        assert found["eyas:router_memory_stall_percent", f"kind={kind}", "pool=spark"] == 0
    assert found["eyas:router_memory_age_seconds", "pool=spark"] == 0
    for kind, size in (("declared", 12.5), ("steady", 14.1), ("peak", 15.0)):
        assert found["eyas:router_footprint_bytes", "backend=small", f"kind={kind}"] == int(size * GIB)


def test_what_was_never_measured_has_no_size_and_is_infinitely_old():
    found = scrape(unmeasured(spark_pool(), "nvidia-smi does not answer"))
    assert not [name for name, *_ in found if name in ("eyas:router_memory_bytes", "eyas:router_memory_total_bytes")]
    assert found["eyas:router_memory_age_seconds", "pool=spark"] == math.inf
    assert found["eyas:router_footprint_bytes", "backend=eyes", "kind=declared"] == 6 * GIB


def test_what_happens_is_counted_from_zero_on():
    counters = ("loads", "loads_refused", "unloads", "memory_late")
    before = scrape(spark_pool())
    for name in ("large", "small", "eyes"):
        assert all(before[f"eyas:router_{one}_total", f"backend={name}"] == 0 for one in counters)
        assert before["eyas:router_memory_back_seconds_count", f"backend={name}"] == 0
    assert ("eyas:router_loads_total", "backend=cloud") not in before
    found = scrape(
        spark_pool(),
        *(note("load"), note("loaded"), note("unload"), note("unloaded", seconds=1.5), note("load")),
        *(note("refused", "eyes"), note("unload", "large"), note("late", "large", 60.0), note("larger")),
        *(note("pressure", None), note("unknown", None)),
    )
    assert [found[f"eyas:router_{one}_total", "backend=small"] for one in counters] == [2, 0, 1, 0]
    assert [found[f"eyas:router_{one}_total", "backend=eyes"] for one in counters] == [0, 1, 0, 0]
    assert [found[f"eyas:router_{one}_total", "backend=large"] for one in counters] == [0, 0, 1, 1]
    assert found["eyas:router_memory_back_seconds_sum", "backend=small"] == 1.5
    assert found["eyas:router_memory_back_seconds_bucket", "backend=small", "le=2.0"] == 1
    assert found["eyas:router_memory_back_seconds_count", "backend=large"] == 0, "it never came back"


def test_an_emergency_that_is_over_before_the_scrape_is_counted():
    async def main():
        async with operated(spark_settings(), pools=(spark_pool(),)) as one:
            for level in ("critical", "emergency", "emergency", "normal", "emergency", "warning"):
                one.control.stand = (spark_pool(level=level),)
                one.operation.happened(note("pressure", None))
            return await scraped(one)

    found = asyncio.run(main())
    assert found["eyas:router_memory_emergencies_total", "pool=spark"] == 2
    assert found["eyas:router_memory_pressure", "level=emergency", "pool=spark"] == 0


@pytest.mark.parametrize(
    ("state", "can_answer"),
    [("idle", 1), ("loading", 1), ("unloading", 1), ("ready", 1), ("unknown", 0), ("out", 0)],
)
def test_a_model_that_is_loaded_when_asked_for_is_not_out(state, can_answer):
    found = scrape(spark_pool(), states=[("small", state), ("cloud", state)])
    assert found["eyas:router_model_backends_available", "model=model-small"] == can_answer
    assert found["eyas:router_model_backends_available", "model=model-cloud"] == (state == "ready")
