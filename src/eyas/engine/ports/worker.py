"""The engine process: `python -m eyas.engine.ports.worker FD` serves one engine on the socket of that descriptor.

It never outlives its parent: it exits when the socket closes, and is killed when the parent's thread that started it
ends. It ignores signals to stop; the parent handles them and drains. The engine's own thread writes steps to the
socket, so an HTTP process that reads too slowly or is stopped slows the engine down, and no memory fills up.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from eyas.base import logs
from eyas.base.bundled import DEMO
from eyas.base.errors import EyasError, InvalidRequest, UserError
from eyas.base.types import FinishReason, Request, StepReport, TokenEvent
from eyas.engine.ports.wire import (
    TO_ENGINE,
    Alive,
    Cancel,
    Failed,
    FromEngine,
    Progress,
    Reader,
    Ready,
    Start,
    Step,
    Stop,
    Submit,
    frame,
)

if TYPE_CHECKING:
    from eyas.engine.ports.random_text import RandomText
    from eyas.engine.ports.stub import StubEngine
    from eyas.engine.ports.threaded import Engine

__all__ = ["main"]

ALIVE_EVERY_S = 0.5
PROGRESS_EVERY_S = 0.1
PR_SET_PDEATHSIG = 1  # prctl(2)
log = logging.getLogger(__name__)


def main() -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _end(_Worker(socket.socket(fileno=int(sys.argv[1]))).run())


class _Worker:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = Reader(sock, TO_ENGINE)
        self._lock = threading.Lock()
        self._engine: Engine | StubEngine | RandomText | None = None
        self._last_progress = 0.0
        self._reporting = threading.Lock()
        self._num_steps = 0  # the last report's number

    def run(self) -> int:
        start = self._reader.receive()
        if not isinstance(start, Start):
            return 1
        logs.setup(start.log_format)
        threading.Thread(target=self._beat, name="eyas-alive", daemon=True).start()
        try:
            engine, folder = _load(start, self._progress)
        except EyasError as error:
            self._send(Failed(str(error), isinstance(error, UserError)))
            return 1
        engine.observe(self._report)
        self._engine = engine
        self._send(Ready(engine.info, str(folder), engine.stats()))
        while (message := self._reader.receive()) is not None:
            match message:
                case Submit(request):
                    self._submit(engine, request)
                case Cancel(request_id, choice):
                    engine.cancel(request_id, choice)
                case Stop():
                    engine.close()
                    return 0
        os._exit(1)  # the parent is gone, so a running step has no reader

    def _submit(self, engine: Engine | StubEngine | RandomText, request: Request) -> None:
        try:
            engine.submit(request, lambda event: None)  # the observer sends every event
        except Exception as error:
            if not isinstance(error, EyasError):
                log.exception("could not enqueue request %s", request.request_id)
            finish = FinishReason.INVALID if isinstance(error, InvalidRequest) else FinishReason.ERROR
            events = tuple(
                TokenEvent(request_id=request.request_id, choice=choice, token_ids=(), finish=finish, error=str(error))
                for choice in range(request.params.n)
            )
            self._report(StepReport(step=0, ms=0.0, num_drafts=0, events=events, stats=engine.stats()))

    def _report(self, report: StepReport) -> None:
        """Send a report; one without a step (`step` 0) gets the number of the last step."""
        with self._reporting:
            self._num_steps = report.step or self._num_steps
            self._send(Step(replace(report, step=self._num_steps)))

    def _progress(self, done: int, total: int) -> None:
        if time.monotonic() > self._last_progress + PROGRESS_EVERY_S:
            self._last_progress = time.monotonic()
            self._send(Progress(done, total))

    def _beat(self) -> None:
        while True:
            time.sleep(ALIVE_EVERY_S)
            engine = self._engine
            if engine is not None and engine.failure is not None:
                self._give_up(engine.failure)  # the device's state is unknown: only a new process helps
            self._send(Alive(0 if engine is None else engine.current_step))

    def _send(self, message: FromEngine) -> None:
        try:
            data = frame(message)
        except Exception as error:  # else its reader would wait for ever
            log.exception("a message could not be sent")
            self._give_up(f"a message could not be sent: {error}")
        with self._lock:
            try:
                self._sock.sendall(data)
            except OSError:  # closed
                os._exit(1)

    def _give_up(self, why: str) -> NoReturn:
        self._send(Failed(why, False))
        _end(1)


def _end(code: int) -> NoReturn:
    """End at once: a thread that is still in native code aborts an interpreter that ends in the ordinary way."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _load(start: Start, progress: Callable[[int, int], None]) -> tuple[Engine | StubEngine | RandomText, Path]:
    """Load the engine, and return it with the folder of its checkpoint. Raises UserError."""
    from eyas.base.bundled import is_null, random_shape
    from eyas.engine.ports.null import load_null

    config = start.config
    if is_null(config.model):
        return load_null(config), DEMO
    try:
        from eyas.engine.ports.threaded import Engine
        from eyas.engine.startup.garbage import collect_seldom
    except ModuleNotFoundError as error:
        raise UserError(f"this needs {error.name}; install it with: pip install 'eyas[engine]'") from error
    if random_shape(config.model) is not None:
        from eyas.engine.ports.random_text import RandomText
        from eyas.engine.startup.random_model import load_random_engine

        engine = Engine.of(load_random_engine(config, start.simulate_acceptance), max_queue=sys.maxsize)
        collect_seldom()
        return RandomText(engine), engine.model_folder
    engine = Engine.load(config, progress=progress, max_queue=sys.maxsize)  # the other side of the socket counts
    collect_seldom()
    return engine, engine.model_folder


if __name__ == "__main__":
    main()
