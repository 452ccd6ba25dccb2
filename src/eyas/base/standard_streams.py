"""Standard streams of a server's process, which goes on whatever they are: closed, full, or never read."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

__all__ = ["discard_unwritten_output", "open_standard_streams", "say", "standard_error"]

STDERR = 2


def open_standard_streams() -> None:
    """Open descriptors 0 to 2 where the parent process closed them: sockets must not get their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stderr = sys.stderr or standard_error()


def say(text: str) -> None:
    """Print to standard output. The server goes on if that is closed or full."""
    with suppress(OSError):
        print(text, flush=True)


def discard_unwritten_output() -> None:
    """Drop what cannot be flushed: the interpreter would try again at exit and fail with another exit code."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def standard_error() -> TextIO:
    """Open standard error unbuffered: a writer that hangs would hold a buffer's lock for ever, even at exit."""
    return io.TextIOWrapper(io.FileIO(STDERR, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
