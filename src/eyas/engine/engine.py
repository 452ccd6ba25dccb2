"""An engine in a thread of this process: the EnginePort over the step loop.

Requests and cancellations go in through a queue that the thread empties before each step; it sleeps when idle.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from eyas.base.config import EngineConfig
from eyas.base.errors import Busy, EyasError, InvalidRequest
from eyas.base.ports import Deliver
from eyas.base.tokenizer import Tokenizer
from eyas.base.types import EngineStats, FinishReason, ModelInfo, Request, TokenEvent
from eyas.engine.build import BuiltEngine
from eyas.engine.load import load_engine_parts

__all__ = ["Engine"]

MAX_WAITING = 1024  # requests in the queue
log = logging.getLogger(__name__)


class Engine:
    """Implements `eyas.base.ports.EnginePort`."""

    def __init__(self, built: BuiltEngine, tokenizer: Tokenizer, info: ModelInfo) -> None:
        self.tokenizer = tokenizer
        self._info = info
        self._core = built.core
        self._memory_bytes = built.memory_bytes
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._loop, name="eyas-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(cls, config: EngineConfig, *, progress: Callable[[int, int], None] | None = None) -> Engine:
        """Load what `config` names and start. Raises UserError."""
        loaded = load_engine_parts(config, progress=progress)
        return cls(loaded.built, loaded.tokenizer, loaded.info)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def failure(self) -> str | None:
        return self._failure

    def submit(self, request: Request, deliver: Deliver) -> None:
        self._core.check(request)
        stats = self._core.stats()
        if stats.num_waiting >= MAX_WAITING:
            raise Busy(f"{stats.num_waiting} requests are waiting already; try again later")

        def add() -> None:
            if self._failure:  # sent before it failed
                _refuse(request, deliver, self._failure)
                return
            try:
                self._core.add(request, deliver)
            except InvalidRequest as error:
                _refuse(request, deliver, str(error))

        with self._lock:
            if self._failure:
                raise EyasError(self._failure)
            if self._closed:
                raise Busy("the engine is stopping")
            self._inbox.put(add)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        self._inbox.put(lambda: self._core.cancel(request_id, choice))

    def stats(self) -> EngineStats:
        return self._core.stats(self._memory_bytes)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        self._thread.join()

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while self._receive():
                try:
                    self._core.step()
                except Exception as error:
                    log.exception("a step of the engine failed")
                    self._fail(f"the engine failed: {error}")
            self._core.fail_all("the engine was stopped", FinishReason.CANCELLED)
        except BaseException as error:  # a fault of ours outside a step: whoever asks must hear of it
            self._failure = f"the engine's thread ended: {error!r}"
            log.exception("the engine's thread ended")

    def _receive(self) -> bool:
        """Take in what was sent, waiting for something if there is nothing to do; False to stop."""
        wait = self._core.is_idle
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            if message is None:
                return False
            try:
                message()
            except Exception:
                log.exception("a request could not be taken in")
            wait = False

    def _fail(self, message: str) -> None:
        """The device's state is unknown after an exception: end everything and take nothing more."""
        with self._lock:
            self._failure = message
        self._core.fail_all(message, FinishReason.ERROR)


def _refuse(request: Request, deliver: Deliver, message: str) -> None:
    for choice in range(request.params.n):
        deliver(
            TokenEvent(
                request_id=request.request_id, choice=choice, token_ids=(), finish=FinishReason.ERROR, error=message
            )
        )
