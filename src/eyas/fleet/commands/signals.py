"""Lets SIGTERM end a command as Ctrl-C does, so that it takes down what it started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["sigterm_like_ctrl_c"]


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Have SIGTERM stop what was started. In the background of a script SIGINT is ignored and only SIGTERM does."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
