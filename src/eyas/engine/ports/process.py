"""The engine in a process of its own: the EnginePort over a socket, a watchdog, and a restart when the process dies.

There are two threads: one starts a process, reads from it until it ends and starts the next; the watchdog kills a
process that makes no progress. Only the first one delivers events, so none of an old process can arrive after its end.
Imports no torch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from eyas.base.checks import check_queue, check_request
from eyas.base.errors import EyasError, InvalidRequest, Unavailable, UserError
from eyas.base.histogram import STEP_TOKENS, Histogram
from eyas.base.ports import Deliver, Observe
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import EngineStats, FinishReason, ModelInfo, Request, StepReport, TokenEvent
from eyas.engine.ports.child import Child
from eyas.engine.ports.wire import Cancel, Failed, Progress, Ready, Step, Stop, Submit, frame

__all__ = ["EngineProcess", "State"]

State = Literal["loading", "ready", "restarting", "stopped"]

TICK_S = 0.25
LOADING_S = 60.0  # least timeout while loading: imports and reads can hold the interpreter's lock for long
PAUSED_S = 3.0  # time without any processor time after which a warning is logged
CLOSE_S = 5.0
END_S = 1.0  # wait between the end of the stream and that of the process
MAX_BACKOFF_S = 30.0
NO_COUNTERS = ("num_running", "num_waiting", "num_restarts")
COUNTERS = tuple(f.name for f in fields(EngineStats) if f.name.startswith("num_") and f.name not in NO_COUNTERS)
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Flight:
    """A request in the engine process, and its unfinished choices."""

    deliver: Deliver
    open: set[int]


class EngineProcess:
    """Implements `eyas.base.ports.EnginePort`.

    A process that makes no progress for `step_timeout` seconds in which it could run is killed: it stays in a step, or
    sends nothing at all. Time for which it or this process was stopped, or the machine asleep, does not count. When a
    process dies, its requests end with an error and another one is started: at once if the last one finished any
    request, else after 1, 2, 4 .. 30 s.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        max_queue: int = 256,
        step_timeout: float = 120.0,
        log_format: Literal["text", "json"] = "text",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Start the process and wait until it is ready. Raises UserError as `Engine.load`, EyasError if it dies."""
        self._config = config
        self._log_format = log_format
        self._max_queue = max_queue
        self._step_timeout = step_timeout
        self._progress = progress
        self._observe: Observe | None = None
        self._lock = threading.Lock()
        self._in_flight: dict[str, _Flight] = {}
        self._num_open = 0  # unfinished choices
        self._state: State = "loading"
        self._why = "the engine is loading"
        self._draining = False
        self._ready: Ready | None = None
        self._refusal: EyasError | None = None
        # Counters of ended processes, and the statistics of the last one; replaced together, so any thread may read.
        self._numbers: tuple[dict[str, int], EngineStats] = ({}, EngineStats())
        self._child: Child | None = None
        self.step_tokens = Histogram(STEP_TOKENS)
        self._was_useful = False
        self._is_paused = False
        self.num_restarts = 0
        self._closing = threading.Event()
        self._first = threading.Event()  # set when ready, or when it never will be
        self._thread = threading.Thread(target=self._supervise, name="eyas-engine-process", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name="eyas-watchdog", daemon=True)
        self._thread.start()
        self._watchdog.start()
        try:
            self._first.wait()
            if self._refusal is not None:
                raise self._refusal
            self.tokenizer = Tokenizer.load(self.model_folder)
        except BaseException:
            self.close()
            raise

    # -- the port -----------------------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        return self._loaded.info

    @property
    def model_folder(self) -> Path:
        return Path(self._loaded.folder)

    @property
    def _loaded(self) -> Ready:
        assert self._ready is not None, "the constructor waits for it"
        return self._ready

    @property
    def state(self) -> State:
        return self._state

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None without a process."""
        child = self._child
        return None if child is None else child.pid

    @property
    def num_in_flight(self) -> int:
        """The number of unfinished requests."""
        return len(self._in_flight)

    @property
    def failure(self) -> str | None:
        if self._draining:
            return "the server is stopping"
        return None if self._state == "ready" else self._why

    def submit(self, request: Request, deliver: Deliver) -> None:
        check_request(request, context=self.info.context, vocab_size=self.info.vocab_size)
        data = frame(Submit(request))  # raises before the request is registered, if it cannot be sent
        with self._lock:
            if (failure := self.failure) is not None or self._child is None:
                raise Unavailable(failure or self._why)
            check_queue(
                self._num_open, request.params.n, concurrency=self._config.concurrency, max_queue=self._max_queue
            )
            if request.request_id in self._in_flight:
                raise InvalidRequest(f"a request with the id '{request.request_id}' is running", param="request_id")
            # Registered before `send`: the answer can arrive before it returns.
            self._in_flight[request.request_id] = _Flight(deliver, set(range(request.params.n)))
            self._num_open += request.params.n
            self._child.send(data)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        with self._lock:
            flight, child = self._in_flight.get(request_id), self._child
            if child is not None and flight is not None and (choice is None or choice in flight.open):
                child.send(frame(Cancel(request_id, choice)))

    def stats(self) -> EngineStats:
        """Return statistics; counters continue over restarts."""
        past, now = self._numbers
        counters = {name: getattr(now, name) + past.get(name, 0) for name in COUNTERS}
        return replace(now, **counters, num_restarts=self.num_restarts)

    def observe(self, observe: Observe | None) -> None:
        self._observe = observe

    def drain(self) -> None:
        """Refuse new requests; running ones go on."""
        self._draining = True

    def close(self) -> None:
        with self._lock:
            is_first = not self._closing.is_set()
            self._closing.set()
            child = self._child
            if is_first and child is not None:
                if child.is_ready:
                    child.send(frame(Stop()))
                else:
                    child.kill("was stopped while loading")
        self._thread.join(CLOSE_S)
        if self._thread.is_alive() and child is not None:
            child.kill("did not stop in time and was killed")
        self._thread.join()
        self._watchdog.join()

    # -- the thread that has the process ------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Run the engine process; at the end all requests are ended and `failure` is set, also after an exception."""
        why = "the engine was stopped"
        try:
            self._keep_alive()
        except BaseException as error:
            why = f"the engine cannot be run any more ({error!r}); restart the server"
            log.exception("the thread that runs the engine process failed")
            if self._ready is None:
                self._refusal = EyasError(why)
        finally:
            with self._lock:
                self._state, self._why = "stopped", why
                child, self._child = self._child, None
            self._first.set()
            self._end_all(why)
            if child is not None:
                child.kill("was given up")
                child.reap(END_S)

    def _keep_alive(self) -> None:
        """Run one process after the other, until `close` or until the first one cannot be loaded."""
        num_failed = 0
        while not self._closing.is_set():
            self._was_useful = False
            how, failed = self._live()
            self._end_all(f"the engine process {how}; it is being restarted, please send the request again")
            if self._ready is None:
                self._refusal = EyasError(f"the engine process {how} while loading; the lines above may say why")
                if failed is not None and failed.by_user:
                    self._refusal = UserError(failed.message)
                break
            num_failed = 0 if self._was_useful else num_failed + 1
            pause = min(2.0 ** (num_failed - 2), MAX_BACKOFF_S) if num_failed > 1 else 0.0
            if not self._closing.is_set():
                self.num_restarts += 1
                self._why = f"the engine process {how} and is being restarted"
                log.error("the engine process %s; starting another in %.0f s", how, pause)
                self._closing.wait(pause)

    def _live(self) -> tuple[str, Failed | None]:
        """Run one process from start to end, and return how it ended, and its `Failed` message if it sent one."""
        try:
            child = Child(self._config, self._log_format)
        except OSError as error:
            return f"could not be started ({error})", None
        with self._lock:
            self._child = child
            if self._closing.is_set():  # `close` was called before this process was registered
                child.kill("was stopped while loading")
        failed = self._read(child)
        with self._lock:
            self._child = None
            if self._state == "ready":
                self._state, self._why = "restarting", "the engine process ended and is being restarted"
        how = child.reap(CLOSE_S if self._closing.is_set() else END_S)
        return (how if failed is None else f"ended ({failed.message})"), failed

    def _read(self, child: Child) -> Failed | None:
        """Handle the messages of the process until it ends, and return its `Failed` message, if any."""
        failed = None
        while (message := child.receive()) is not None:
            match message:
                case Step(report):
                    self._take(report)
                case Progress(done, total):
                    if self._progress is not None and self._ready is None:
                        self._progress(done, total)
                case Ready():
                    with self._lock:
                        child.is_ready = True
                        self._ready, self._state = message, "ready"
                        self._numbers = (self._numbers[0], message.stats)
                    self._first.set()
                case Failed():
                    failed = message
        return failed

    def _take(self, report: StepReport) -> None:
        self._numbers = (self._numbers[0], report.stats)
        if report.ms > 0:  # 0: no step was run
            self.step_tokens.add(report.num_tokens)
        for event in report.events:
            self._deliver(event)
        if (observe := self._observe) is not None:
            try:
                observe(report)
            except Exception:
                log.exception("step observer raised")

    def _deliver(self, event: TokenEvent) -> None:
        flight = self._in_flight.get(event.request_id)
        if flight is None or event.choice not in flight.open:
            return
        if event.finish is not None:
            self._was_useful |= event.finish in (FinishReason.STOP, FinishReason.LENGTH)
            with self._lock:
                flight.open.discard(event.choice)
                self._num_open -= 1
                if not flight.open:
                    del self._in_flight[event.request_id]
        try:
            flight.deliver(event)
        except Exception:
            log.exception("token callback of request %s raised", event.request_id)

    def _end_all(self, error: str) -> None:
        """Deliver a last event for every unfinished choice of the process."""
        with self._lock:
            left = [(name, choice) for name, flight in self._in_flight.items() for choice in sorted(flight.open)]
            is_stop = self._closing.is_set()
            stats = self.stats()
            past = {name: getattr(stats, name) for name in COUNTERS}
            self._numbers = (past, EngineStats(pages_total=stats.pages_total, memory_bytes=stats.memory_bytes))
        finish = FinishReason.CANCELLED if is_stop else FinishReason.ERROR
        for name, choice in left:
            self._deliver(
                TokenEvent(
                    request_id=name, choice=choice, token_ids=(), finish=finish, error=None if is_stop else error
                )
            )

    # -- the watchdog -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closing.wait(TICK_S):
            child = self._child
            if child is None:
                continue
            try:
                self._look_at(child)
            except Exception:
                log.exception("the watchdog failed; it goes on")

    def _look_at(self, child: Child) -> None:
        if child.has_ended:
            child.hang_up()
            return
        stalled_s, paused_s = child.look()
        if stalled_s > (self._step_timeout if child.is_ready else max(self._step_timeout, LOADING_S)):
            child.kill(f"made no progress for {stalled_s:.0f} s and was killed")
        if paused_s > PAUSED_S and not self._is_paused:
            log.warning("the engine process does not run (stopped, frozen or starved); its requests wait")
        elif paused_s == 0 and self._is_paused:
            log.warning("the engine process runs again")
        self._is_paused = paused_s > PAUSED_S
