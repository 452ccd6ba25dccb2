"""Logging of a process: lines for people or JSON, written by a thread of its own.

Logging never blocks or fails because of where the lines go (a full disk, a closed pipe, a reader that hangs): lines are
dropped, and the next one that gets through says how many.
"""

from __future__ import annotations

import atexit
import json
import logging
import queue
import sys
import threading
import time
from contextlib import suppress
from typing import Literal, TextIO

__all__ = ["fields", "setup"]

MAX_QUEUED = 10_000  # lines
CLOSE_S = 1.0
PAUSE_S = 0.02
FIELDS = "fields"


def fields(**values: object) -> dict[str, object]:
    """Named values of a log record for `extra=fields(...)`: columns in JSON and `name=value` in text."""
    return {FIELDS: values}


def setup(log_format: Literal["text", "json"], *, stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send what this process logs to `stream` (standard error) from now on."""
    logging.raiseExceptions = False
    handler = _Background(stream or sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("eyas").setLevel(level)
    for noisy in ("asyncio", "uvicorn.error"):  # below errors: what strangers send, and that they left
        logging.getLogger(noisy).setLevel(logging.ERROR)


class _Background(logging.Handler):
    """Formats where it is called and writes in a thread."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._queue: queue.Queue[str | None] = queue.Queue(MAX_QUEUED)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="eyas-log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._queue.put_nowait(self.format(record))
        except Exception:
            self._num_dropped += 1

    def close(self) -> None:
        """Write what is queued, for two seconds at most."""
        atexit.unregister(self.close)
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)
        super().close()

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            dropped = self._num_dropped
            note = f"{self.format(_dropped(dropped))}\n" if dropped else ""
            try:
                self._stream.write(f"{note}{line}\n")
                self._stream.flush()
            except (OSError, ValueError):
                self._num_dropped += 1
            else:
                self._num_dropped -= dropped
            if (
                self._queue.empty()
            ):  # lines that come in this time do not wake the thread, which costs the caller 100 us each
                time.sleep(PAUSE_S)


def _dropped(num_lines: int) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": "log lines were dropped"}
        | fields(dropped=num_lines)
    )


class _Text(logging.Formatter):
    """`2026-11-20 14:00:05 INFO message name=value ...`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        values = getattr(record, FIELDS, {})
        return " ".join([line, *(f"{name}={_short(value)}" for name, value in values.items() if value is not None)])


def _short(value: object) -> str:
    text = str(value)
    return text if text and " " not in text and text.isprintable() else json.dumps(text)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line | getattr(record, FIELDS, {}), default=str)
