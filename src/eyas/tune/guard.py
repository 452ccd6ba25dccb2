"""`python -m eyas.tune.guard`: stops the engines of a sweep whose process has died.

The sweep writes the name of a deployment before it starts it (`+NAME`) and after it has stopped it (`-NAME`). When the
pipe closes, by whatever end the sweep has found, those that are left are taken down.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import IO

from eyas.base.errors import UserError
from eyas.base.settings.home import home
from eyas.fleet.running.control import take_down
from eyas.fleet.running.state import Store, is_supervised

__all__ = ["Guard", "left_over", "main"]


class Guard:
    """The guard's process, seen by the sweep."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "eyas.tune.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the sweep, which then closes the pipe
        )

    def tell(self, line: str) -> None:
        """Say what is about to be started, or was stopped. A guard that is gone does not end the sweep."""
        pipe: IO[bytes] | None = self._process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.write(f"{line}\n".encode())
            pipe.flush()

    def close(self) -> None:
        """Let it stop what is left, and wait for that."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def left_over(lines: Iterable[str]) -> list[str]:
    """Return the names that were begun and not ended, the last first."""
    names: dict[str, None] = {}
    for line in lines:
        sign, name = line[:1], line[1:].strip()
        if sign == "+":
            names[name] = None
        elif sign == "-":
            names.pop(name, None)
    return list(names)[::-1]


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    names = left_over(sys.stdin)
    folder = home(os.environ)
    for name in names:
        store = Store(folder)
        try:
            if is_supervised(folder, name) or store.launches(name):
                take_down(folder, store, name, os.environ, lambda event: None)
        except UserError as error:
            print(f"eyas tune: {error}", file=sys.stderr)
        finally:
            store.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
