"""One engine process as its parent sees it: started, written to, read from, ended. Knows no requests."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import fields
from typing import Literal

from eyas.base.config import EngineConfig
from eyas.engine.wire import FROM_ENGINE, FromEngine, Reader, Start, ToEngine, WireError, frame

__all__ = ["Child"]

WRITE_BYTES = 1 << 20
# Thread counts are the environment's, and stay what they are: sums of matrix products depend on them.
FIXED_THREADS = {"OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}


class Child:
    """Starts a fresh interpreter and sends it `config`. The thread that makes it must live until it has ended."""

    def __init__(self, config: EngineConfig, log_format: Literal["text", "json"]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "eyas.engine.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # words of libraries belong to the log
                pass_fds=(theirs.fileno(),),
                env={**FIXED_THREADS, **os.environ},
            )
        self._sock = ours
        self._reader = Reader(ours, FROM_ENGINE)
        self._lock = threading.Lock()
        self._backlog = bytearray()
        self._verdict: str | None = None
        self.is_ready = False
        self.busy_s = 0.0
        self._heard = time.monotonic()
        # Of a server's settings only the engine's: keys stay in this process.
        own = EngineConfig(**{item.name: getattr(config, item.name) for item in fields(EngineConfig)})
        self.send(Start(own, log_format))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Never waits: what the socket does not take at once is written by a thread. Ignores a closed socket."""
        data = frame(message)
        with self._lock:
            is_writing = bool(self._backlog)
            sent = 0
            if not is_writing:
                with contextlib.suppress(OSError):
                    sent = self._sock.send(data, socket.MSG_DONTWAIT)
            if sent < len(data):
                self._backlog += data[sent:]
                if not is_writing:
                    threading.Thread(target=self._write, name="eyas-engine-writer", daemon=True).start()

    def _write(self) -> None:
        while True:
            with self._lock:
                data = bytes(self._backlog[:WRITE_BYTES])
            try:
                sent = self._sock.send(data)
            except OSError:
                return
            with self._lock:
                del self._backlog[:sent]
                if not self._backlog:
                    return

    def receive(self) -> FromEngine | None:
        """The next message; None once the process has ended or what it sends is no message."""
        try:
            message = self._reader.receive()
        except WireError as error:
            self.kill(f"could not be understood ({error}) and was killed")
            return None
        except OSError:  # it ended before it had read everything
            return None
        self._heard = time.monotonic()
        return message

    # -- for the watchdog ---------------------------------------------------------------------------------------------

    def silent_s(self) -> float:
        """Seconds since it was last heard of; 0 while something that it sent is still to be read."""
        with self._lock:
            if self._sock.fileno() < 0 or select.select([self._sock], [], [], 0)[0]:
                self.excuse()
        return time.monotonic() - self._heard

    def excuse(self) -> None:
        """Count silence from now."""
        self._heard = time.monotonic()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    # -- the end ------------------------------------------------------------------------------------------------------

    def kill(self, why: str) -> None:
        """End it now; `why` continues "the engine process ..."."""
        self._verdict = self._verdict or why
        self._process.kill()
        self.hang_up()

    def hang_up(self) -> None:
        """Let `receive` come to an end, even if something else holds the other end of the socket open."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def bury(self, seconds: float) -> str:
        """Wait until it has ended, kill it after `seconds`, and say how it ended."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
        if code is None:
            self.kill("did not end in time and was killed")
            with contextlib.suppress(subprocess.TimeoutExpired):  # even that can take long while a device is at work
                code = self._process.wait(seconds)
        self.hang_up()
        with self._lock:
            self._sock.close()
        if self._verdict is not None or code is None:
            return self._verdict or "does not end"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
