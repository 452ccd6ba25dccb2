"""An engine in a thread of this process: the EnginePort over the step loop.

Requests and cancellations arrive through a queue that the thread drains before each step; it sleeps when idle.
`engine.ports.worker` runs one of these in a process of its own.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from eyas.base.checks import check_queue
from eyas.base.errors import InvalidRequest, Unavailable
from eyas.base.histogram import STEP_TOKENS, Histogram
from eyas.base.ports import Deliver, Observe
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import EngineStats, FinishReason, ModelInfo, Request, StepReport, TokenEvent
from eyas.engine.startup.build import BuiltEngine
from eyas.engine.startup.load import LoadedEngine, load_engine_parts

__all__ = ["Engine"]

MAX_QUEUE = 1024
log = logging.getLogger(__name__)


class Engine:
    """Implements `eyas.base.ports.EnginePort`."""

    def __init__(
        self,
        built: BuiltEngine,
        tokenizer: Tokenizer,
        info: ModelInfo,
        *,
        folder: Path = Path(),
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self.tokenizer = tokenizer
        self.model_folder = folder
        self._info = info
        self._core = built.core
        self._memory_bytes = built.memory_bytes
        self._max_queue = max_queue
        self._num_sent = 0  # choices in the queue to the engine's thread
        self._refused: list[TokenEvent] = []
        self._num_steps = 0  # the last report's number
        self._observe: Observe | None = None
        self.step_tokens = Histogram(STEP_TOKENS)
        self._step_numbers = itertools.count(1)
        self._current_step = 0
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._loop, name="eyas-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        *,
        progress: Callable[[int, int], None] | None = None,
        max_queue: int = MAX_QUEUE,
    ) -> Engine:
        """Load the engine of `config` and start its thread. Raises UserError."""
        return cls.of(load_engine_parts(config, progress=progress), max_queue=max_queue)

    @classmethod
    def of(cls, loaded: LoadedEngine, *, max_queue: int = MAX_QUEUE) -> Engine:
        """Start the thread of a loaded engine."""
        return cls(loaded.built, loaded.tokenizer, loaded.info, folder=loaded.folder, max_queue=max_queue)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def failure(self) -> str | None:
        return self._failure

    @property
    def pid(self) -> int | None:
        return None

    @property
    def current_step(self) -> int:
        """The number of the current step, from 1; 0 between steps."""
        return self._current_step

    def submit(self, request: Request, deliver: Deliver) -> None:
        def add() -> None:
            try:
                if self._failure:  # sent before the engine failed
                    raise Unavailable(self._failure)
                self._core.add(request, deliver)
            except InvalidRequest as error:
                self._refuse(request, deliver, FinishReason.INVALID, str(error))
            except Unavailable as error:
                self._refuse(request, deliver, FinishReason.ERROR, str(error))
            except Exception as error:
                log.exception("could not enqueue request %s", request.request_id)
                self._refuse(request, deliver, FinishReason.ERROR, f"the request could not be enqueued: {error}")
            finally:
                with self._lock:
                    self._num_sent -= request.params.n

        with self._lock:
            if self._failure:
                raise Unavailable(self._failure)
            if self._closed:
                raise Unavailable("the engine is stopping")
            self._core.check(request)
            stats = self._core.stats()
            check_queue(
                stats.num_running + stats.num_waiting + self._num_sent,
                request.params.n,
                concurrency=self._core.scheduler.config.num_slots,
                max_queue=self._max_queue,
            )
            self._num_sent += request.params.n
            self._inbox.put(add)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        self._inbox.put(lambda: self._core.cancel(request_id, choice))

    def stats(self) -> EngineStats:
        return self._core.stats(self._memory_bytes)

    def observe(self, observe: Observe | None) -> None:
        self._observe = observe

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        self._thread.join()

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            device = self._core.runner.state.device
            if device.type == "cuda":
                torch.cuda.set_device(device)  # the current device is per thread
            while self._receive(wait=self._core.is_idle):
                self._current_step = next(self._step_numbers)
                try:
                    report = self._core.step()
                except Exception as error:
                    log.exception("a step of the engine failed")
                    self._fail(f"the engine failed: {error}")
                    report = self._core.take_report()
                self._current_step = 0
                self._report(report)
            self._core.fail_all(None, FinishReason.CANCELLED)
            self._report(self._core.take_report())
        except BaseException as error:  # a bug outside a step: all requests end with it, later ones too
            log.exception("the engine's thread ended")
            self._fail(f"the engine's thread ended: {error!r}")
            self._receive(wait=False)  # what was sent before the failure is refused
            self._report(self._core.take_report())

    def _report(self, report: StepReport | None) -> None:
        """Pass the report to the observer, with refusals. Its exceptions are logged and go no further."""
        refused, self._refused = tuple(self._refused), []
        if report is None and refused:
            report = StepReport(step=self._num_steps, ms=0.0, num_drafts=0, events=(), stats=self._core.stats())
        if report is None:
            return
        self._num_steps = report.step
        if report.ms > 0:  # 0: no step was run
            self.step_tokens.add(report.num_tokens)
        if self._observe is None:
            return
        stats = replace(report.stats, memory_bytes=self._memory_bytes)
        try:
            self._observe(replace(report, events=refused + report.events, stats=stats))
        except Exception:
            log.exception("step observer raised")

    def _receive(self, *, wait: bool) -> bool:
        """Run the queued calls, the first of which may be waited for, and return False to stop."""
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
                log.exception("a queued call raised")
            wait = False

    def _fail(self, message: str) -> None:
        """End all requests and refuse new ones: after an exception the device's state is unknown."""
        with self._lock:
            self._failure = message
        self._core.fail_all(message, FinishReason.ERROR)

    def _refuse(self, request: Request, deliver: Deliver, finish: FinishReason, message: str) -> None:
        for choice in range(request.params.n):
            event = TokenEvent(request_id=request.request_id, choice=choice, token_ids=(), finish=finish, error=message)
            self._refused.append(event)
            try:
                deliver(event)
            except Exception:
                log.exception("token callback of request %s raised", request.request_id)
