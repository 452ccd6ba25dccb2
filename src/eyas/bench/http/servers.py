"""Servers that are measured, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from eyas.base.errors import UserError

__all__ = ["null_server", "started"]

STOP_S = 60.0


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
