"""Log lines as text and JSON, and that a stream that fails or hangs stops nobody."""

import io
import json
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

from eyas.base import logs

log = logging.getLogger("eyas.tests.logs")


@pytest.fixture
def set_up():
    """`logs.setup` with everything put back afterwards."""
    root = logging.getLogger()
    names = ("", "eyas", "asyncio", "uvicorn.error")
    before, raises = list(root.handlers), logging.raiseExceptions
    levels = {name: logging.getLogger(name).level for name in names}
    for handler in before:
        root.removeHandler(handler)

    yield logs.setup
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in before:
        root.addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.raiseExceptions = raises


def written(stream) -> list[str]:
    for handler in logging.getLogger().handlers:
        handler.close()
    return stream.getvalue().splitlines()


def test_text(set_up):
    stream = io.StringIO()
    set_up("text", stream=stream)
    log.info("request", extra=logs.fields(id="r1", tokens=3, ttft_ms=None, error='a "b"\nc', route="/v1/x"))
    log.debug("not shown")
    logging.getLogger("elsewhere").info("not shown")
    (line,) = written(stream)
    assert line[19:] == ' INFO request id=r1 tokens=3 error="a \\"b\\"\\nc" route=/v1/x'


def test_json(set_up):
    stream = io.StringIO()
    set_up("json", stream=stream)
    log.warning("request", extra=logs.fields(id="r1", ttft_ms=None, odd="a\nb", thing={1}))
    try:
        raise ValueError("a fault")
    except ValueError:
        log.exception("it failed")
    first, second = map(json.loads, written(stream))
    assert first | {"time": ""} == {
        "time": "",
        "level": "warning",
        "logger": "eyas.tests.logs",
        "message": "request",
        "id": "r1",
        "ttft_ms": None,
        "odd": "a\nb",
        "thing": "{1}",
    }
    assert first["time"].endswith("Z") and "ValueError: a fault" in second["exception"]


class Hanging(io.StringIO):
    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()

    def write(self, text):
        self.go_on.wait(20)
        return super().write(text)


def test_a_stream_that_hangs_keeps_nobody_waiting(set_up, monkeypatch):
    monkeypatch.setattr(logs, "MAX_QUEUED", 100)
    stream = Hanging()
    set_up("text", stream=stream)
    start = time.monotonic()
    for number in range(1000):
        log.info("line %d", number)
    assert time.monotonic() - start < 10
    stream.go_on.set()
    lines = written(stream)
    assert 100 <= len(lines) < 110 and "log lines were dropped" in "".join(lines)


class Failing(io.StringIO):
    broken = True

    def write(self, text):
        if self.broken:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_full_disk_costs_lines(set_up, log_format):
    stream = Failing()
    set_up(log_format, stream=stream)
    for _ in range(5):
        log.info("lost")
    handler = logging.getLogger().handlers[0]
    while handler._num_dropped < 5:
        time.sleep(0.001)
    stream.broken = False
    log.info("kept")
    lines = written(stream)
    assert len(lines) == 2
    if log_format == "json":
        note, line = map(json.loads, lines)
        assert (note["level"], note["dropped"], line["message"]) == ("warning", 5, "kept")
    else:
        assert lines[0].endswith(" WARNING log lines were dropped dropped=5") and lines[1].endswith("INFO kept")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_process_with_a_full_disk_for_a_log_ends_well(log_format):
    code = (
        f"import logging; from eyas.base import logs; logs.setup('{log_format}')\n"
        "for i in range(100): logging.getLogger('eyas.x').info('line')\n"
        "print('done')"
    )
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, timeout=30, text=True)
    assert done.stdout == "done\n" and done.returncode == 0


def test_a_closed_pipe_for_a_log_ends_well():
    code = (
        "import logging; from eyas.base import logs; logs.setup('text'); logging.getLogger('eyas').info('x'); print(1)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writer, timeout=30, text=True)
    os.close(writer)
    assert done.stdout == "1\n" and done.returncode == 0
