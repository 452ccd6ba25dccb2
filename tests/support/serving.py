"""`eyas serve` as a process of its own, for tests that meet it from outside."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx

LIMIT_S = 120  # how long a test waits for what must come


@dataclass
class Served:
    """A running server. `lines` is what it has said before it was ready."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str]
    log_file: IO[str]

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        self.log_file.seek(0)
        return self.log_file.read()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=LIMIT_S)

    def ask(self, **fields: Any) -> AbstractContextManager[httpx.Response]:
        """A chat completion's response, of which nothing but the head has been read."""
        body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0} | fields
        return httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=LIMIT_S)

    @property
    def engine_pid(self) -> int | None:
        """The engine's process, as the system sees it."""
        return next(iter(children_of(self.process.pid)), None)

    def until_ready(self, status: int = 200) -> float:
        """Wait until `/ready` answers with `status`; the seconds that it took."""
        began = time.monotonic()
        while self.get("/ready").status_code != status:
            assert time.monotonic() < began + LIMIT_S
            time.sleep(0.01)
        return time.monotonic() - began

    def stop(self, number: int) -> tuple[int, str, str]:
        """Send a signal and wait; exit code, standard output and error."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, self.log


def children_of(pid: int) -> list[int]:
    """The processes that `pid` has started, whichever of its threads did."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@contextmanager
def served(model: str, *flags: str) -> Iterator[Served]:
    """`eyas serve MODEL` on a free port, ended however the test ends; its log is shown if the test fails."""
    with tempfile.TemporaryFile("a+") as log_file:  # no pipe: nobody reads while it runs
        process = subprocess.Popen(
            [sys.executable, "-m", "eyas", "serve", model, "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("EYAS_")},
        )
        try:
            lines: list[str] = []
            while not lines or not lines[-1].startswith("ready"):
                lines.append(process.stdout.readline())
                assert lines[-1], "it ended; its log is below"
            yield Served(process, int(lines[-1].split()[1].rsplit(":", 1)[1].removesuffix("/v1")), lines, log_file)
        finally:
            process.kill()
            process.communicate()
            log_file.seek(0)
            print(log_file.read())


def events_of(lines: Iterator[str]) -> list[Any]:
    """Server-sent events from the lines of a stream: JSON objects, and [DONE] as it is."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]  # others are comments
    return [part if part == "[DONE]" else json.loads(part) for part in data]
