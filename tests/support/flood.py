"""Many bodies at once against a server that is a process of its own: what they cost it, and a stream beside them."""

import contextlib
import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.support.serving import LIMIT_S, Served

KINDS = {"content-type": "application/json"}


@dataclass
class Flood:
    """`statuses` and `answers` are those of the bodies, `gaps_s` the times between a stream's chunks meanwhile."""

    wall_s: float
    statuses: list[int]
    answers: list[bytes]
    peak_mib: float
    after_mib: float
    ordinary_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)

    @property
    def late_ms(self) -> float:
        return 1e3 * (max(self.gaps_s, default=0.0) - self.ordinary_s)

    def __str__(self) -> str:
        counts = {status: self.statuses.count(status) for status in sorted(set(self.statuses))}
        return (
            f"answered in {self.wall_s:.2f} s: {counts}, RSS at most {self.peak_mib:.0f} MiB, then "
            f"{self.after_mib:.0f}; a stream {self.late_ms:.0f} ms late (ordinary gap {1e3 * self.ordinary_s:.0f} ms)"
        )


def memory_mib(pid: int, name: str = "VmRSS") -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def forget_peak(pid: int) -> None:
    """Begin VmHWM again."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def send(server: Served, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    with contextlib.closing(connection):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            connection.request("POST", path, body, KINDS)
        answer = connection.getresponse()
        return answer.status, answer.read()


def flood(server: Served, path: str, bodies: list[bytes], *, beside: bool = False) -> Flood:
    """Send all `bodies` at once; with `beside`, a stream runs from a second before to the end."""
    pid = server.process.pid
    gaps: list[tuple[float, float]] = []
    done = threading.Event()
    streamer = threading.Thread(target=_stream, args=(server, gaps, done))
    if beside:
        streamer.start()
        while len(gaps) < 2:
            time.sleep(0.01)
        time.sleep(1.0)
    forget_peak(pid)
    began = time.monotonic()
    answers: list[tuple[int, bytes]] = []
    threads = [threading.Thread(target=lambda body=body: answers.append(send(server, path, body))) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.monotonic() - began
    peak = memory_mib(pid, "VmHWM")
    result = Flood(wall_s, [one[0] for one in answers], [one[1] for one in answers], peak, memory_mib(pid))
    if beside:
        time.sleep(0.3)
        done.set()
        streamer.join()
        result.ordinary_s = max(gap for when, gap in gaps if when < began)
        result.gaps_s = [gap for when, gap in gaps if when >= began]
    return result


def _stream(server: Served, gaps: list[tuple[float, float]], done: threading.Event) -> None:
    """Note when a chunk came and how long after the one before, over one stream after another.

    Completions, since each round shows some text there: in a chat what may yet be a header is withheld.
    """
    body = {"prompt": "Once there was", "stream": True, "max_tokens": 1500, "ignore_eos": True}
    while not done.is_set():
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=LIMIT_S) as answer:
            last = None
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    now = time.monotonic()
                    if last is not None:
                        gaps.append((now, now - last))
                    last = now
                if done.is_set():
                    return


def text_body(size: int, text: str = "7", path: str = "/v1/chat/completions") -> bytes:
    """A body of `size` bytes, nearly all of them `text` repeated, where the route takes its text."""
    fill = text * (size // len(json.dumps(text)[1:-1]))
    fields = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": fill}]},
        "/v1/completions": {"prompt": fill},
        "/v1/responses": {"input": fill},
        "/tokenize": {"prompt": fill},
    }
    return json.dumps(fields[path]).encode()
