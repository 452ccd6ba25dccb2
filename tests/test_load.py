"""`eyas serve` on the demo model under a mixed crowd: each gets an answer or a documented error; nothing is left."""

import asyncio
import os
import re
import time
from pathlib import Path

import pytest
from tests.support.load import Tally, run_crowd
from tests.support.serving import Served, children_of, served

FLAGS = ("--max-queue", "24", "--concurrency", "8", "--context", "4k")
MAX_GROWTH_MIB = 32


def rss_mib(pid: int) -> float:
    """Resident memory of a process and its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20 + sum(map(rss_mib, children_of(pid)))


def gauge(metrics: str, name: str) -> float:
    values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)
    assert values, f"no metric {name}"
    return sum(map(float, values))


def crowd(server: Served, num_requests: int) -> tuple[Tally, dict[int, float]]:
    """Send the crowd and check what came back and what is left; also the memory halfway and at the end, in MiB."""
    rss: dict[int, float] = {}

    def on_done(count: int) -> None:
        if count in (num_requests // 2, num_requests):
            rss[count] = rss_mib(server.process.pid)

    tally = asyncio.run(run_crowd(server.url, num_requests=num_requests, concurrency=64, on_done=on_done))
    assert not tally.wrong, tally.wrong[:10]
    assert tally.total("answered") and tally.total("left") and tally.num_queue_full, tally.outcomes
    end = time.monotonic() + 10
    while gauge(server.get("/metrics").text, "vllm:num_requests_running") and time.monotonic() < end:
        time.sleep(0.1)  # whoever left is noticed within two rounds
    metrics = server.get("/metrics").text
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert gauge(metrics, name) == 0, name
    assert "Traceback" not in server.log
    return tally, rss


@pytest.mark.slow
def test_a_mixed_crowd_is_served():
    with served("demo", *FLAGS) as server:
        crowd(server, 80)


@pytest.mark.slow
def test_a_thousand_requests_leave_nothing_behind():
    nothing_is_left(1000)


@pytest.mark.soak
def test_five_thousand_requests_leave_nothing_behind():
    nothing_is_left(5000)


def nothing_is_left(num_requests: int) -> None:
    with served("demo", *FLAGS) as server:
        began = time.monotonic()
        tally, rss = crowd(server, num_requests)
        print(f"\n{num_requests} requests in {time.monotonic() - began:.0f} s; memory in MiB {rss}")
        print(f"answered {tally.total('answered')}, refused {tally.total('refused')}, left {tally.total('left')},")
        print(f"still queue full after 20 tries {tally.total('queue full')}; 429 in all: {tally.num_queue_full}")
        for (kind, outcome), count in sorted(tally.outcomes.items()):
            print(f"  {kind:<18} {outcome:<12} {count}")
        assert rss[num_requests] - rss[num_requests // 2] < MAX_GROWTH_MIB
