"""The parent's side of one engine process: starts it, sends, receives, ends it. Knows no requests."""

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

from eyas.base.settings.config import ENV_PREFIX, EngineConfig, ServeConfig
from eyas.engine.ports.stall import StallClock, processor_seconds
from eyas.engine.ports.wire import FROM_ENGINE, Alive, FromEngine, Reader, Start, WireError, frame

__all__ = ["Child"]

PROGRAM = ("-m", "eyas.engine.ports.worker")
WRITE_BYTES = 1 << 20
# Thread counts are inherited from the environment unchanged: sums in matmul depend on them.
FIXED_THREADS = {"OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}


class Child:
    """Starts a fresh interpreter and sends it `config`. The thread that makes it must live until it has ended."""

    def __init__(self, config: EngineConfig, log_format: Literal["text", "json"]) -> None:
        # The settings come as a message, and only the engine's: keys stay in this process.
        own = EngineConfig(**{item.name: getattr(config, item.name) for item in fields(EngineConfig)})
        acceptance = config.simulate_acceptance if isinstance(config, ServeConfig) else None
        start = frame(Start(own, log_format, acceptance))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what libraries print belongs in the log
                pass_fds=(theirs.fileno(),),
                env=FIXED_THREADS | environment,
            )
        self._sock = ours
        self._reader = Reader(ours, FROM_ENGINE)
        self._lock = threading.Lock()
        self._backlog = bytearray()
        self._is_broken = False  # the socket takes nothing more
        self._verdict: str | None = None
        self.is_ready = False
        self._step = 0  # the last step that it reported
        self._stall = StallClock(time.monotonic())
        self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes) -> None:
        """Send one frame without waiting: a thread writes what the socket does not take. Ignores a closed socket."""
        with self._lock:
            if self._is_broken:
                return
            is_writing = bool(self._backlog)
            sent = 0
            if not is_writing:
                with contextlib.suppress(OSError):
                    sent = self._sock.send(data, socket.MSG_DONTWAIT)
            if sent < len(data):
                self._backlog += data[sent:]
                if not is_writing:
                    try:
                        threading.Thread(target=self._write, name="eyas-engine-writer", daemon=True).start()
                    except RuntimeError as error:  # no more threads, and the rest of the message cannot be sent
                        self.kill(f"could not be written to ({error}) and was killed")

    def _write(self) -> None:
        while True:
            with self._lock:
                data = bytes(self._backlog[:WRITE_BYTES])
            try:
                sent = self._sock.send(data)
            except OSError:
                with self._lock:
                    self._is_broken = True
                    self._backlog.clear()
                return
            with self._lock:
                del self._backlog[:sent]
                if not self._backlog:
                    return

    def receive(self) -> FromEngine | None:
        """Return the next message; None once the process has ended or has sent something that is not a message."""
        try:
            message = self._reader.receive()
        except WireError as error:
            self.kill(f"could not be understood ({error}) and was killed")
            return None
        except OSError:  # it ended before it had read everything
            return None
        if not isinstance(message, Alive) or message.step == 0 or message.step != self._step:
            self._stall.progressed()
        if isinstance(message, Alive):
            self._step = message.step
        return message

    # -- for the watchdog ---------------------------------------------------------------------------------------------

    def look(self) -> tuple[float, float]:
        """Return seconds without progress while it could run, and seconds since it last ran (`engine.ports.stall`)."""
        with self._lock:
            waiting = select.poll()  # select() takes no descriptor above 1023
            if self._sock.fileno() >= 0:
                waiting.register(self._sock, select.POLLIN)
            is_behind = self._sock.fileno() < 0 or bool(waiting.poll(0))
        self._stall.look(time.monotonic(), processor_seconds(self.pid), is_behind=is_behind)
        return self._stall.stalled_s, self._stall.paused_s

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    # -- the end ------------------------------------------------------------------------------------------------------

    def kill(self, why: str) -> None:
        """Kill the process; `why` continues the sentence "the engine process ..."."""
        self._verdict = self._verdict or why
        self._process.kill()
        self.hang_up()

    def hang_up(self) -> None:
        """Shut the socket down, so that `receive` ends even if another process holds the other end open."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def reap(self, seconds: float) -> str:
        """Wait for the process to end, killing it after `seconds`, and return how it ended."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
        if code is None:
            self.kill("did not end in time and was killed")
            with contextlib.suppress(subprocess.TimeoutExpired):  # even that can take long while a device is busy
                code = self._process.wait(seconds)
        self.hang_up()
        with self._lock:
            self._sock.close()
        if self._verdict is not None or code is None:
            return self._verdict or "does not end"
        return f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
