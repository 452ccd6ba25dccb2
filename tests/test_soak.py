"""An hour of mixed load on `eyas serve demo`: no answer is lost, and the memory of both processes stays what it is."""

import asyncio
import os
import signal
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.load import run_crowd
from tests.support.serving import Served, served

SECONDS = float(os.environ.get("EYAS_SOAK_S", "3600"))
CLIENTS = int(os.environ.get("EYAS_SOAK_CLIENTS", "16"))
FLAGS = ("--max-queue", "64", "--concurrency", "8", "--context", "4k")
NUM_WINDOWS = 6  # ten minutes each; the first one is warming up
SAMPLES_PER_WINDOW = 60
MAX_CHANGE = 0.05


@dataclass(frozen=True)
class Sample:
    """Of one process: resident memory in MiB, open files, threads."""

    rss_mib: float
    num_files: int
    num_threads: int

    @staticmethod
    def of(pid: int) -> "Sample":
        folder = Path(f"/proc/{pid}")
        pages = int((folder / "statm").read_text().split()[1])
        files, threads = (len(list((folder / name).iterdir())) for name in ("fd", "task"))
        return Sample(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, files, threads)


class Watch(threading.Thread):
    """Samples both processes until it is stopped, and prints a line a window."""

    def __init__(self, server: Served) -> None:
        super().__init__(name="watch")
        self.pids = {"http": server.process.pid, "engine": server.engine_pid}
        self.windows: list[dict[str, list[Sample]]] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        print(f"\n{'s':>6}" + "".join(f"{name + ' ' + what:>16}" for name in self.pids for what in COLUMNS))
        began = time.monotonic()
        while not self.stopped.is_set():
            self.windows.append({name: [] for name in self.pids})
            for _ in range(SAMPLES_PER_WINDOW):
                if self.stopped.wait(SECONDS / NUM_WINDOWS / SAMPLES_PER_WINDOW):
                    break
                for name, pid in self.pids.items():
                    self.windows[-1][name].append(Sample.of(pid))
            cells = [f"{value:>16.1f}" for name in self.pids for value in figures(self.windows[-1][name])]
            print(f"{time.monotonic() - began:>6.0f}" + "".join(cells), flush=True)


COLUMNS = ("MiB", "most MiB", "files", "threads")


def figures(samples: list[Sample]) -> tuple[float, float, float, float]:
    """Median and most of the memory, most files and threads; of nothing, zeros."""
    if not samples:
        return (0.0,) * 4
    memory = [sample.rss_mib for sample in samples]
    most = (max(sample.num_files for sample in samples), max(sample.num_threads for sample in samples))
    return statistics.median(memory), max(memory), *most


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
def test_an_hour_of_mixed_load_loses_nothing_and_grows_nothing():
    with served("demo", *FLAGS) as server:
        watch = Watch(server)
        watch.start()
        try:
            tally = asyncio.run(run_crowd(server.url, seconds=SECONDS, concurrency=CLIENTS))
        finally:
            watch.stopped.set()
            watch.join()
        for (kind, outcome), count in sorted(tally.outcomes.items()):
            print(f"  {kind:<20} {outcome:<12} {count}")
        print(f"  told that the queue is full: {tally.num_queue_full}")
        assert not tally.wrong, tally.wrong[:10]
        assert tally.total("queue full") == 0 and min(map(tally.total, ("answered", "refused", "left"))) > 0
        assert server.engine_pid == watch.pids["engine"], "the engine was restarted"
        code, _, log = server.stop(signal.SIGTERM)
        assert code == 0 and "Traceback" not in log and "ERROR" not in log
    steady = watch.windows[1:NUM_WINDOWS]
    for name in watch.pids:
        first, *others = [figures(window[name]) for window in steady]
        for median, _, num_files, num_threads in others:
            assert abs(median / first[0] - 1) <= MAX_CHANGE, f"{name}: {first[0]:.1f} MiB became {median:.1f} MiB"
            assert num_files <= first[2] + CLIENTS and num_threads <= first[3] + 8, name
