"""Processes that stand still cost no answer, and those that run without getting on are replaced."""

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.engine.ports.test_process import LIMIT_S, events_of, start, submit, tokens_of, until

from eyas.base.types import FinishReason
from eyas.engine.ports import child

# One step takes 2.4 s, less than the timeout and what a pause may count (1 s).
STEPS_SLOWLY = """
import queue, time
from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.engine.ports.process import EngineProcess
engine = EngineProcess(EngineConfig(model="null:2400"), step_timeout=2)
inbox = queue.SimpleQueue()
engine.submit(Request(request_id="r", prompt_ids=(1, 2), params=SamplingParams(max_tokens=1)), inbox.put)
while not engine._child._step:  # a step that began after the pause would take longer than the timeout
    time.sleep(0.01)
print(engine.pid, flush=True)
event = inbox.get()
print(event.finish, event.error, engine.num_restarts, engine.failure, flush=True)
"""
HOLDS_THE_LOCK = """
import {module}
from eyas.engine.ports import stub
from eyas.engine.ports import worker
def round(self, choice):
    {statement}
stub.StubEngine._round = round
worker.main()
"""
WAITS = HOLDS_THE_LOCK.format(module="ctypes", statement="ctypes.PyDLL(None).sleep(1000)")
COMPUTES = HOLDS_THE_LOCK.format(module="re", statement="re.match('(a+)+$', 'a' * 60 + 'b')")


def test_an_engine_that_is_stopped_loses_no_answer(caplog):
    """It is waited for, however long that takes, and the log says so."""
    with start(step_timeout=1) as engine:
        whole = tokens_of(events_of(submit(engine, "alone", max_tokens=400)))
        inboxes = [submit(engine, str(index), max_tokens=400) for index in range(4)]
        pid = engine.pid
        os.kill(pid, signal.SIGSTOP)
        late = submit(engine, "late", max_tokens=400)
        until(lambda: "the engine process does not run" in caplog.text)
        assert engine.failure is None and "runs again" not in caplog.text
        os.kill(pid, signal.SIGCONT)
        assert [tokens_of(events_of(inbox)) for inbox in [*inboxes, late]] == [whole] * 5
        until(lambda: "the engine process runs again" in caplog.text)
        assert (engine.pid, engine.num_restarts) == (pid, 0)


@pytest.mark.parametrize("who", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("engine", "server")), "both"])
def test_a_pause_within_a_step_does_not_count(who):
    """The pause is longer than --step-timeout: a laptop that sleeps, a frozen cgroup, Ctrl-Z and fg."""
    command = [sys.executable, "-c", STEPS_SLOWLY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        pids = {"engine": [pid], "server": [parent.pid], "both": [parent.pid, pid]}[who]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for one in pids:
                os.kill(one, number)
            if number == signal.SIGSTOP:
                time.sleep(2.2)
        out, _ = parent.communicate(timeout=LIMIT_S)
        assert out == f"{FinishReason.LENGTH} None 0 None\n"


@pytest.mark.parametrize("program", [WAITS, COMPUTES], ids=["waits", "computes"])
def test_an_engine_whose_interpreter_is_held_for_ever_is_replaced(program, monkeypatch):
    """No heartbeat can come, and it is not stopped."""
    monkeypatch.setattr(child, "PROGRAM", ("-c", program))
    with start(step_timeout=1) as engine:
        pid, error = engine.pid, events_of(submit(engine))[-1]
        assert error.finish is FinishReason.ERROR and "made no progress for 1 s and was killed" in error.error
        until(lambda: engine.failure is None and engine.pid != pid)
