"""Six models whose declared sizes are wrong, in a pool of 4 GiB with real memory: it never falls over."""

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field

import pytest
from tests.router.support.pooled import MIB, Ballast, Pooled, pooled, write_file

from eyas.router.backends.orchestrator import Times
from eyas.router.memory.processes import members, pss

POOL_MIB = 4096
NUM_REQUESTS = 120
ABOVE_S = 5.0
EMERGENCY = 0.9
# name, MiB when ready, MiB while it loads, declared / true, keys of its entry
MODELS = (
    ("pinned", 600, 600, 0.75, {"pinned": True, "priority": "critical"}),
    ("large", 1700, 1900, 0.7, {"exclusive": True}),
    ("other", 1500, 1600, 1.3, {"exclusive": True}),
    ("middle", 900, 1000, 0.7, {}),
    ("small", 500, 500, 1.2, {"priority": "low"}),
    ("tiny", 250, 300, 0.8, {}),
)


@dataclass
class Watch:
    """Measures what all processes of the pool hold, in a thread of its own: another witness than the router."""

    box: Pooled
    shares: list[tuple[float, float]] = field(default_factory=list)
    exclusive: list[set[str]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        planned = self.box.router.backends.planned
        while not self.over.wait(0.2):
            held = {name: pss(pids) for name, pids in members({n: p.marks() for n, p in planned.items()}).items()}
            self.shares.append((time.monotonic(), sum(held.values()) / (POOL_MIB * MIB)))
            self.exclusive.append({name for name in ("large", "other") if held[name] > 400 * MIB})

    def longest_above(self, share: float) -> float:
        longest, since = 0.0, None
        for at, now in self.shares:
            since = (at if since is None else since) if now > share else None
            longest = max(longest, 0.0 if since is None else at - since)
        return longest


@pytest.mark.slow
def test_six_models_in_four_gib(lab):
    engines = [
        Ballast(name, mib, peak=peak, load_s=1.5, answer_s=0.4, declared=share, more=more)
        for name, mib, peak, share, more in MODELS
    ]
    path = write_file(lab.tmp, engines, POOL_MIB, lab.journal)
    rng = random.Random(20)
    times = Times(calm_s=1.0, watched_s=0.5, returning_s=0.1, failed_s=5.0)

    async def main():
        async with pooled(path, times) as box:
            await box.until(lambda: box.state("pinned") == "ready")
            (pid,) = [line["pid"] for line in lab.journal_lines() if line["name"] == "pinned"]
            watch = Watch(box)
            thread = threading.Thread(target=watch.run)
            thread.start()
            try:
                asked = []
                for _ in range(NUM_REQUESTS):
                    name = rng.choices([one[0] for one in MODELS], weights=(1, 2, 2, 3, 3, 3))[0]
                    asked.append(asyncio.create_task(box.ask(name)))
                    await asyncio.sleep(rng.expovariate(1.0))
                answers = await asyncio.wait_for(asyncio.gather(*asked), 240)
            finally:
                watch.over.set()
                thread.join()
            statuses = [status for status, _ in answers]
            assert statuses.count(200) == NUM_REQUESTS, (statuses, box.told())
            assert watch.longest_above(EMERGENCY) <= ABOVE_S
            assert all(len(found) < 2 for found in watch.exclusive), "two exclusive ones"
            journal = [line for line in lab.journal_lines() if line["name"] == "pinned"]
            assert [line["pid"] for line in journal] == [pid]
            assert box.router.num_in_flight() == 0
            larger = box.notes("larger")
            assert set(larger) <= {"pinned", "large", "middle", "tiny"} and len(set(larger)) == len(larger)
            most, above_s = max(share for _, share in watch.shares), watch.longest_above(EMERGENCY)
            print(f"\n{len(box.notes('load'))} loads, {len(box.notes('unload'))} evictions, at most {most:.0%} of the")
            print(f"pool, above 90 % for {above_s:.1f} s, larger than declared: {', '.join(map(str, larger))}")

    asyncio.run(main())
