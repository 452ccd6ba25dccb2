"""Changed bodies at every endpoint of a server that is a process of its own, and what they leave behind in it.

`pytest -m slow -s tests/gateway/test_fuzz_process.py` prints requests by status, memory, file descriptors and threads.
"""

import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.gateway.support.fuzz import CONTENT_TYPES, GOOD, Client, complaint, encoded, mutate, tuned
from tests.support.flood import flood, memory_mib, text_body
from tests.support.serving import Served, served

DOCUMENTED = {200, 400, 404, 415, 429}
NUM_BODIES = 20_000
NUM_BEFORE = 1_000  # until all that is made once has been made
SEED = 15
MAX_GROWTH_MIB = 32
IDLE_S = 3.0


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    mib: float
    num_files: int
    num_threads: int

    @classmethod
    def by(cls, pid: int) -> "Held":
        files, tasks = (list(Path(f"/proc/{pid}/{kind}").iterdir()) for kind in ("fd", "task"))
        return cls(memory_mib(pid), len(files), len(tasks))

    def __str__(self) -> str:
        return f"RSS {self.mib:.1f} MiB, {self.num_files} file descriptors, {self.num_threads} threads"


def send(server: Served, rng: random.Random, num_bodies: int) -> Counter[int]:
    """Changed bodies to each endpoint in turn; the statuses that came back."""
    client, statuses = Client(server.url), Counter()
    for number in range(num_bodies):
        path = list(GOOD)[number % len(GOOD)]
        good = rng.choice(GOOD[path])
        body = json.dumps(tuned(rng, good)).encode() if rng.random() < 0.3 else encoded(rng, mutate(rng, good))
        headers = {"content-type": rng.choice(CONTENT_TYPES).encode("latin-1")} if rng.random() < 0.1 else {}
        status, answer, answered = client.send("POST", path, body, headers)
        wrong = complaint(status, answer, answered)
        assert wrong is None, (wrong, number, path, body[:2000], answer[:500])
        statuses[status] += 1
    client.close()
    return statuses


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_changed_bodies_leave_nothing_behind():
    rng = random.Random(SEED)
    with served("null", "--served-name", "stub") as server:
        processes = {"HTTP": server.process.pid, "engine": server.engine_pid}
        for size in (300_000, 3_000_000):  # all threads of the pools
            flood(server, "/tokenize", [text_body(size, "ab, ", "/tokenize")] * 8)
        statuses = send(server, rng, NUM_BEFORE)
        time.sleep(IDLE_S)
        before = {name: Held.by(pid) for name, pid in processes.items()}
        began = time.monotonic()
        statuses += send(server, rng, NUM_BODIES - NUM_BEFORE)
        seconds = time.monotonic() - began
        time.sleep(IDLE_S)
        after = {name: Held.by(pid) for name, pid in processes.items()}
        print(f"\n{statuses.total()} bodies, seed {SEED}, by status: {dict(sorted(statuses.items()))}; {seconds:.0f} s")
        for name in processes:
            print(f"{name} process: {before[name]} after {NUM_BEFORE}; {after[name]} at the end")
        assert set(statuses) <= DOCUMENTED and statuses[200] > 1000 and statuses[400] > 1000
        for name in processes:
            assert after[name].mib - before[name].mib < MAX_GROWTH_MIB
            assert after[name].num_files <= before[name].num_files
            assert after[name].num_threads <= before[name].num_threads
        assert server.get("/ready").status_code == 200 and "Traceback" not in server.log
