"""The engine process by itself, spoken to over its socket: what it says of failures, and when it ends."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from eyas.base.settings.config import EngineConfig
from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.engine.ports.wire import FROM_ENGINE, Alive, Failed, Reader, Ready, Start, Step, Stop, Submit, frame

START = Start(EngineConfig(model="null", context=64), "text")
PLAIN = "from eyas.engine.ports.worker import main\nmain()"
FAILS = """
import threading
from eyas.engine.ports import null
from eyas.engine.ports import worker
load = null.load_null
def load_null(config):
    engine = load(config)
    threading.Timer(0.1, setattr, (engine, "failure", "the engine failed: out of memory")).start()
    return engine
null.load_null = load_null
worker.main()
"""
REFUSES = """
from eyas.engine.ports import stub
from eyas.engine.ports import worker
add = stub.StubEngine.submit
def submit(self, request, deliver):
    if request.request_id == "odd":
        raise KeyError("no such thing")
    add(self, request, deliver)
stub.StubEngine.submit = submit
worker.main()
"""
BUSY = """
import threading
import torch
from eyas.engine.ports import worker
matrix = torch.ones(300, 300)
def multiply():
    while True:
        torch.mm(matrix, matrix)
threading.Thread(target=multiply, daemon=True).start()
worker.main()
"""
SMALL = "from eyas.engine.ports import wire, worker\nwire.MAX_MESSAGE_BYTES = 2000\nworker.main()"


@contextmanager
def worker(code=PLAIN):
    """A worker process and our end of its socket."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours:
        with theirs:
            process = subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=(theirs.fileno(),))
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()


def messages(sock):
    """What it sends until it closes, signs of life left out."""
    reader = Reader(sock, FROM_ENGINE)
    while (message := reader.receive()) is not None:
        if not isinstance(message, Alive):
            yield message


def test_it_loads_answers_and_stops():
    with worker() as (process, sock):
        sock.sendall(frame(START) + frame(Submit(Request(request_id="r", prompt_ids=(1, 2)))))
        incoming = messages(sock)
        ready = next(incoming)
        assert isinstance(ready, Ready) and ready.info.context == 64
        events = []
        while not events or events[-1].finish is None:
            step = next(incoming)
            assert isinstance(step, Step)
            events += step.report.events
        assert events[-1].finish is FinishReason.LENGTH and sum(len(event.token_ids) for event in events) == 62
        sock.sendall(frame(Stop()))
        assert list(incoming) == [] and process.wait(30) == 0


def test_it_stops_with_a_thread_in_native_code():
    """As a thread that computes a slow mask is: an interpreter that ends below it aborts."""
    with worker(BUSY) as (process, sock):
        sock.sendall(frame(START))
        assert isinstance(next(incoming := messages(sock)), Ready)
        sock.sendall(frame(Stop()))
        assert list(incoming) == [] and process.wait(30) == 0


def test_what_its_engine_refuses_comes_as_one_event_a_choice():
    with worker() as (_, sock):
        params = SamplingParams(n=3)
        sock.sendall(frame(START) + frame(Submit(Request(request_id="r", prompt_ids=(1,) * 64, params=params))))
        _, step = next(incoming := messages(sock)), next(incoming)
        assert [(event.choice, event.finish) for event in step.report.events] == [
            (choice, FinishReason.INVALID) for choice in range(3)
        ]
        assert "64 tokens, the context holds 64" in step.report.events[0].error


def test_a_fault_while_a_request_is_taken_in_is_that_requests_alone():
    """Its error comes under the last step's number."""
    with worker(REFUSES) as (_, sock):
        odd, even = (Request(request_id=name, prompt_ids=(1, 2)) for name in ("odd", "even"))
        sock.sendall(frame(START) + frame(Submit(even)))
        incoming = messages(sock)
        next(incoming)
        while (report := next(incoming).report).events[-1].finish is None:
            pass
        last = report.step
        sock.sendall(frame(Submit(odd)) + frame(Submit(even)))
        refusal, answer = next(incoming).report, next(incoming).report
        assert [(e.request_id, e.finish, e.error) for e in refusal.events] == [
            ("odd", FinishReason.ERROR, "'no such thing'")
        ]
        assert (refusal.step, answer.step) == (last, last + 1) and last > 1
        assert answer.events[0].request_id == "even"


def test_what_it_cannot_send_ends_it_rather_than_its_requests_silently():
    with worker(SMALL) as (process, sock):
        params = SamplingParams(prompt_logprobs=20)
        sock.sendall(frame(START) + frame(Submit(Request(request_id="r", prompt_ids=(1,) * 40, params=params))))
        *_, last = messages(sock)
        assert isinstance(last, Failed) and "a message could not be sent: a message of" in last.message
        assert process.wait(30) == 1


def test_a_failed_engine_is_reported_and_its_process_ends():
    """What the device holds after a failure is unknown; only a new process helps."""
    with worker(FAILS) as (process, sock):
        sock.sendall(frame(START))
        assert list(messages(sock))[1:] == [Failed("the engine failed: out of memory", False)]
        assert process.wait(30) == 1


def test_it_ends_when_its_socket_closes():
    with worker() as (process, sock):
        sock.sendall(frame(START))
        next(messages(sock))
        sock.close()
        assert process.wait(30) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signals_to_stop_are_left_to_its_parent(number):
    with worker() as (process, sock):
        sock.sendall(frame(START))
        incoming = messages(sock)
        next(incoming)
        os.kill(process.pid, number)
        sock.sendall(frame(Submit(Request(request_id="r", prompt_ids=(1,)))))
        assert next(incoming).report.events and process.poll() is None


def test_it_wants_to_be_told_what_to_load_first():
    with worker() as (process, sock):
        sock.sendall(frame(Stop()))
        assert list(messages(sock)) == []
        assert process.wait(30) == 1
