"""`--trace FILE`: one JSON line per step of the engine, with token ids and without text.

Lines are written by a thread of their own from a bounded queue. A full disk, a missing folder or a slow disk only costs
lines, which are counted; writing resumes by itself once it is possible.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from pathlib import Path

import msgspec

from eyas.base.errors import UserError
from eyas.base.types import StepReport, TokenEvent

__all__ = ["Trace", "check_writable", "trace_line"]

MAX_QUEUED = 4096  # steps
RETRY_S = 5.0
log = logging.getLogger(__name__)


def check_writable(path: Path) -> None:
    """Create the file if it is not there. Raises UserError if it cannot be created or written to."""
    try:
        if not path.is_fifo():  # opening a pipe would wait for its reader, and closing it would end that reader
            os.close(_open(path))
    except OSError as error:
        raise UserError(
            f"cannot write the trace to '{path}' ({error.strerror}); give --trace a file that you may write to, "
            "in an existing folder"
        ) from error


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


class Trace:
    """Appends the steps passed to `__call__`, from any thread and without waiting, to `path`.

    `num_dropped` counts the steps that could not be written.
    """

    def __init__(self, path: Path, *, retry_s: float = RETRY_S, max_queued: int = MAX_QUEUED) -> None:
        self.num_dropped = 0
        self._path = path
        self._retry_s = retry_s
        self._queue: queue.Queue[tuple[float, StepReport] | None] = queue.Queue(max_queued)
        self._file: int | None = None
        self._broken_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="eyas-trace", daemon=True)
        self._thread.start()

    def __call__(self, report: StepReport) -> None:
        try:
            self._queue.put_nowait((time.time(), report))
        except queue.Full:
            self.num_dropped += 1

    def close(self, timeout: float = 5.0) -> None:
        """Write what is queued, for at most `timeout` seconds."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return  # the disk hangs; the thread is a daemon
        self._thread.join(timeout)

    # -- the writer's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._write(trace_line(*item))
        if self._file is not None:
            os.close(self._file)

    def _write(self, line: bytes) -> None:
        if self._broken_since is not None and time.monotonic() - self._broken_since < self._retry_s:
            self.num_dropped += 1
            return
        try:
            self._append(line)
        except OSError as error:
            self.num_dropped += 1
            if self._broken_since is None:
                log.warning("trace: cannot write %s (%s); steps are dropped until it works", self._path, error.strerror)
            self._broken_since = time.monotonic()
            return
        if self._broken_since is not None:
            self._broken_since = None
            log.warning("trace: writing again; %d steps were dropped so far", self.num_dropped)

    def _append(self, line: bytes) -> None:
        """Write a whole line or none. Raises OSError. The file is reopened after log rotation or an error."""
        if self._file is not None and not _is_same_file(self._file, self._path):
            os.close(self._file)
            self._file = None
        if self._file is None:
            self._file = _open(self._path)
        num_written = os.write(self._file, line)
        if num_written < len(line):  # the disk became full within the line
            os.ftruncate(self._file, max(os.fstat(self._file).st_size - num_written, 0))
            raise OSError(28, "no space left on the disk")


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def trace_line(now: float, report: StepReport) -> bytes:
    """Return a step as a line of JSON. `id` and `choice` name the tokens' owner; `drafted` is empty without a round."""
    stats = report.stats
    record = {
        "t": round(now, 6),
        "step": report.step,
        "ms": round(report.ms, 3),
        "k": report.num_drafts,
        "slots": [_slot(event) for event in report.events],
        "kv": {"used": dict(stats.pages_used), "total": dict(stats.pages_total)},
        "running": stats.num_running,
        "waiting": stats.num_waiting,
    }
    return msgspec.json.encode(record) + b"\n"


def _slot(event: TokenEvent) -> dict[str, object]:
    drafted = event.round.draft_ids if event.round else ()
    accepted = event.round.num_accepted if event.round else 0
    return {
        "id": event.request_id,
        "choice": event.choice,
        "drafted": drafted,
        "accepted": accepted,
        "tokens": event.token_ids,
        "finish": event.finish,
    }
