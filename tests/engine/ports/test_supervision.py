"""What keeps the engine's process running, when it fails itself: its threads, its counters, the kinds of death."""

import os
import resource
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.engine.ports.test_process import events_of, start, submit, tokens_of, until

from eyas.base.errors import EyasError, Unavailable
from eyas.base.settings.config import EngineConfig
from eyas.base.types import EngineStats, FinishReason
from eyas.engine.ports import process
from eyas.engine.ports.child import Child


@pytest.fixture
def many_files():
    """So many files are open that whatever is opened next has a number above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1300:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1300), hard))
    with ExitStack() as stack:
        while stack.enter_context(Path(os.devnull).open()).fileno() < 1100:
            pass
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_watchdog_works_with_high_file_numbers_and_survives_a_failure(many_files, monkeypatch, caplog):
    look, failures = Child.look, [RuntimeError("no such thing")]

    def fails_once(self):
        if failures:
            raise failures.pop()
        return look(self)

    monkeypatch.setattr(Child, "look", fails_once)
    with start("null:60000", step_timeout=1) as engine:
        until(lambda: "the watchdog failed; it goes on" in caplog.text)
        assert "made no progress for 1 s" in events_of(submit(engine))[-1].error
        until(lambda: engine.failure is None)
        assert caplog.text.count("the watchdog failed") == 1


def test_a_signal_without_a_name_is_one_more_way_to_die():
    number = signal.SIGRTMIN + 3
    with start() as engine:
        inbox = submit(engine, max_tokens=4000)
        os.kill(engine.pid, number)
        assert f"was killed by signal {int(number)};" in events_of(inbox)[-1].error
        until(lambda: engine.failure is None)


def test_nobody_is_left_waiting_when_supervision_itself_fails(monkeypatch, caplog):
    reap = Child.reap

    def fails(self, seconds):
        reap(self, seconds)
        raise RuntimeError("no such thing")

    with start() as engine:
        inbox = submit(engine, n=2, max_tokens=4000)
        monkeypatch.setattr(Child, "reap", fails)
        os.kill(engine.pid, signal.SIGKILL)
        for event in [event for event in events_of(inbox, 2) if event.finish]:
            assert event.finish is FinishReason.ERROR and "cannot be run any more" in event.error
        assert engine.state == "stopped" and "no such thing" in engine.failure and engine.num_in_flight == 0
        with pytest.raises(Unavailable, match="restart the server"):
            submit(engine)
        assert "the thread that runs the engine process failed" in caplog.text


def test_a_process_that_cannot_be_supervised_is_no_engine(monkeypatch):
    def receive(self):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(Child, "receive", receive)
    with pytest.raises(EyasError, match="no such thing"):
        start()


def test_counters_neither_jump_nor_fall_at_a_restart(monkeypatch):
    """Whoever reads them while a process's counters are put to those of its predecessors sees either sum once."""
    with start() as engine:
        tokens_of(events_of(submit(engine, max_tokens=100)))
        until(lambda: engine.stats().num_generated_tokens == 100)
        seen = []

        def statistics(**values):
            seen.append(engine.stats().num_generated_tokens)
            return EngineStats(**values)

        monkeypatch.setattr(process, "EngineStats", statistics)
        os.kill(engine.pid, signal.SIGKILL)
        until(lambda: engine.num_restarts == 1 and engine.failure is None)
        assert seen == [100] and engine.stats().num_generated_tokens == 100


def test_what_a_dead_engine_was_to_read_is_not_kept():
    config = EngineConfig(model="null:60000")
    child = Child(config, "text")
    os.kill(child.pid, signal.SIGSTOP)
    child.send(bytes(8 << 20))
    assert len(child._backlog) > 4 << 20
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: not child._backlog)
    for _ in range(3):
        child.send(bytes(8 << 20))
    assert not child._backlog
    child.reap(5)


def test_an_engine_that_cannot_be_written_to_is_replaced(monkeypatch):
    """Without a thread for what the socket does not take, half a message would be all that it ever got."""
    with start(max_queue=1000) as engine:
        os.kill(engine.pid, signal.SIGSTOP)

        def no_thread(*args, **options):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr("eyas.engine.ports.child.threading.Thread", no_thread)
        inbox = submit(engine, "big", prompt=(1,) * 4000)
        for index in range(500):
            if engine.num_in_flight == 0:
                break
            try:
                submit(engine, str(index), prompt=(1,) * 4000, max_tokens=1)
            except Unavailable:
                break
        assert "could not be written to (can't start new thread)" in events_of(inbox)[-1].error
        monkeypatch.undo()
        until(lambda: engine.failure is None)
        assert len(tokens_of(events_of(submit(engine, "next", max_tokens=20)))) == 20
