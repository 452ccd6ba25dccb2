"""Servers that are measured, each in a process of its own, and the machine that they run on."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eyas.base.errors import UserError

__all__ = ["HttpMachine", "machine", "null_server", "started"]

STOP_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpMachine:
    """A machine as `bench/report.py` wants it. A server of the HTTP side computes in one thread."""

    device: str
    num_cores: int
    num_threads: int
    load: float


def machine() -> HttpMachine:
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
             if line.startswith("model name")]  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    device = names[0] if names else platform.machine()
    return HttpMachine(device=device, num_cores=cores, num_threads=1, load=os.getloadavg()[0])


@contextmanager
def started(*arguments: str) -> Generator[tuple[str, int], None, None]:
    """Run `eyas` with these arguments until it says that it is ready; yield its address and the process id.

    Raises UserError if it ends before.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "eyas", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready"):
                yield line.split()[1], process.pid
                return
        raise UserError(f"'eyas {' '.join(arguments)}' did not start; run it to see why")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def null_server(model: str, context: int) -> Generator[tuple[str, int], None, None]:
    """Run `eyas serve` with an engine that computes nothing, on a free port; yield its address and the process id."""
    options: Sequence[str] = ("--port", "0", "--concurrency", "1024", "--live", "off", "--context", str(context))
    with started("serve", model, *options) as server:
        yield server
