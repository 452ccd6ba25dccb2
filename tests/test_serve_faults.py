"""The engine's process dies under a whole server: each client gets one error, and the service recovers."""

import json
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field

import httpx
import pytest
from tests.support.serving import LIMIT_S, Served, events_of, served

NUM_STREAMS = 6
PAUSE_S = 4.0
DEADLINE_S = 5.0  # from the fault to the last client's error


@dataclass
class Stream:
    """One client: what it got, and when its connection ended."""

    max_tokens: int
    lines: list[str] = field(default_factory=list)
    status: int = 0
    ended: float = 0.0

    def run(self, server: Served) -> None:
        with server.ask(stream=True, max_tokens=self.max_tokens, ignore_eos=True, temperature=1) as response:
            self.status = response.status_code
            for line in response.iter_lines():
                self.lines.append(line)
        self.ended = time.monotonic()


def answer(server: Served) -> dict:
    """What the model says to one question, always the same."""
    body = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}], "temperature": 0, "max_tokens": 40}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=LIMIT_S)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


def start_streams(server: Served, max_tokens: int) -> tuple[list[Stream], list[threading.Thread]]:
    """Clients, some of which have got tokens already."""
    streams = [Stream(max_tokens) for _ in range(NUM_STREAMS)]
    threads = [threading.Thread(target=stream.run, args=(server,)) for stream in streams]
    for thread in threads:
        thread.start()
    end = time.monotonic() + LIMIT_S
    while sum("data: " in "".join(stream.lines) for stream in streams) < 2:  # others still wait for a place
        assert time.monotonic() < end
        time.sleep(0.01)
    return streams, threads


def pause(server: Served, pids: list[int]) -> None:
    """Stop processes under load for longer than --step-timeout, and let them go on: every stream comes to its end."""
    before = server.engine_pid
    streams, threads = start_streams(server, 40)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(PAUSE_S)
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    for stream in streams:
        events = events_of(iter(stream.lines))
        assert stream.status == 200 and events[-1] == "[DONE]" and not any("error" in event for event in events)
    assert server.engine_pid == before


def strike(server: Served, number: signal.Signals, pause_s: float) -> str:
    """One fault under load; what was measured, for people."""
    streams, threads = start_streams(server, 900)
    time.sleep(pause_s)
    pid = server.engine_pid
    os.kill(pid, number)
    began = time.monotonic()
    server.until_ready(503)
    assert server.get("/health").status_code == 200
    with server.ask() as refused:
        assert refused.status_code in (200, 503)  # 200 if the engine is back already
    server.until_ready()
    back = time.monotonic() - began
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    failed = []
    for stream in streams:
        is_stream = stream.status == 200  # else it was still waiting for its first token
        events = events_of(iter(stream.lines)) if is_stream else [json.loads("".join(stream.lines))]
        errors = [event["error"]["message"] for event in events if event != "[DONE]" and "error" in event]
        if events[-1] == "[DONE]":  # it had its whole answer before
            assert not errors
            continue
        assert len(errors) == 1 and "error" in events[-1], "one error, and nothing after it"
        assert "the engine process" in errors[0] and "send the request again" in errors[0]
        failed.append(stream.ended - began)
    assert failed and max(failed) < DEADLINE_S
    assert server.engine_pid != pid
    told = f"{len(failed)} of {NUM_STREAMS} clients told within {max(failed):.2f} s"
    return f"{number.name}: {told}, ready after {back:.2f} s"


def run(numbers: list[signal.Signals], seed: int) -> None:
    rng = random.Random(seed)
    with served("demo", "--context", "1k", "--concurrency", "4", "--step-timeout", "3") as server:
        before = answer(server)
        for count, number in enumerate(numbers, 1):
            print("\n" + strike(server, number, rng.uniform(0, 0.5)), end="")
            assert answer(server) == before
            metrics = server.get("/metrics").text
            assert any(line.endswith(f" {count}.0") and "restarts" in line for line in metrics.splitlines())
        pause(server, [server.engine_pid])
        pause(server, [server.process.pid, server.engine_pid])
        code, _, log = server.stop(signal.SIGTERM)
        assert code == 0 and "Traceback" not in log
    print()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [pytest.param(8, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.soak)])
def test_the_service_comes_back(times):
    rng = random.Random(2)
    run([rng.choice([signal.SIGKILL, signal.SIGSEGV]) for _ in range(times)], seed=3)
