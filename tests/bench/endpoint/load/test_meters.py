"""Lag of the client, memory and energy of the machine."""

import asyncio
import time

import pytest

from eyas.bench.endpoint.load.here import HereMeter, memory_in_use, read_lines
from eyas.bench.endpoint.load.lag import LagMeter, bottleneck
from eyas.bench.endpoint.records import Lag


def test_a_blocked_loop_is_late():
    async def main():
        meter = LagMeter()
        meter.start()
        for _ in range(20):
            await asyncio.sleep(0.01)
            time.sleep(0.03)
        meter.stop()
        return meter.lag([0.001, 0.002])

    lag = asyncio.run(main())
    assert lag.loop_p99_s > 0.02 and lag.send_p99_s == 0.002 and 0 <= lag.cpu_share < 1.5


@pytest.mark.parametrize(
    ("loop_s", "send_s", "share", "is_open", "said"),
    [
        (0.001, 0.001, 0.5, True, ""),
        (0.001, 0.001, 0.95, False, "used 95% of a core"),
        (0.015, 0.0, 0.1, False, "15.0 ms late"),
        (0.001, 0.015, 0.1, True, "15.0 ms late"),
        (0.001, 0.04, 0.1, False, ""),
        (0.001, 0.06, 0.1, False, "60.0 ms (p99) from one request to the next"),
    ],
)
def test_a_window_is_void_where_the_client_bounds_it(loop_s, send_s, share, is_open, said):
    lag = Lag(loop_p99_s=loop_s, send_p99_s=send_s, cpu_share=share)
    why = bottleneck(lag, 0.1, 1.0, is_open=is_open)
    assert said in why and bool(why) == bool(said)


def test_memory_and_energy_from_the_driver():
    lines = ["0, 1024, 300.0\n", "1, 10, 100.0\n", "0, 2048, 310.0\n", "1, 10, 90.0\n", "0, 20"]
    assert read_lines(lines) == (2058 << 20, 400.0)
    assert read_lines(["0, [N/A], 40.5\n"]) == (None, 20.25)
    assert read_lines([]) == (None, None)


def test_memory_of_a_machine_without_a_driver():
    assert memory_in_use("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 40 kB\n") == 60 << 10

    async def main():
        meter = HereMeter()
        await meter.start()
        await asyncio.sleep(0.05)
        await meter.stop()
        await meter.stop()
        return meter.found()

    memory, _ = asyncio.run(main())
    assert memory.used_bytes > 1 << 20 and memory.source in ("driver", "MemAvailable")
