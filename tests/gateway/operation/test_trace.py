"""Step reports to listeners, and traces: what they hold, and that no disk stops anything."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from tests.gateway.support.gateway import eventually

from eyas import cli
from eyas.base.errors import UserError
from eyas.base.types import EngineStats, FinishReason, RoundTrace, StepReport, TokenEvent
from eyas.gateway.operation.trace import Trace, check_writable, trace_line
from eyas.gateway.server.steps import StepHub

EVENT = TokenEvent(
    request_id="r",
    choice=1,
    token_ids=(5, 6),
    round=RoundTrace(draft_ids=(5, 7), num_accepted=1),
    finish=FinishReason.STOP,
)
STATS = EngineStats(num_running=2, num_waiting=1, pages_used={"full": 3}, pages_total={"full": 9})
REPORT = StepReport(step=4, ms=1.23456, num_drafts=2, events=(EVENT,), stats=STATS)


class Engine:
    """Only what a hub asks of an engine."""

    observer = None

    def observe(self, observe):
        self.observer = observe


def lines(path: Path) -> list[dict]:
    """Those that are written to their end."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def test_a_line_has_the_tokens_of_each_slot_and_no_text():
    line = trace_line(12.5, REPORT)
    slot = {"id": "r", "choice": 1, "drafted": [5, 7], "accepted": 1, "tokens": [5, 6], "finish": "stop"}
    assert line.endswith(b"\n") and json.loads(line) == {
        "t": 12.5,
        "step": 4,
        "ms": 1.235,
        "k": 2,
        "slots": [slot],
        "running": 2,
        "waiting": 1,
        "kv": {"used": {"full": 3}, "total": {"full": 9}},
    }


def test_a_server_traces_each_step(serve, tmp_path):
    path = tmp_path / "trace.jsonl"
    server = serve(gateway={"trace": path})
    answer = server.chat("Hi")
    assert eventually(lambda: any(slot["finish"] for line in lines(path) for slot in line["slots"]))
    slots = [slot for line in lines(path) for slot in line["slots"]]
    assert sum(len(slot["tokens"]) for slot in slots) == answer.usage.completion_tokens
    assert sum(slot["accepted"] for slot in slots) == answer.model_extra["timings"]["draft_n_accepted"]
    assert {slot["id"] for slot in slots} == {answer.id}
    steps = [line["step"] for line in lines(path)]
    assert steps == sorted(steps) and "Hello" not in path.read_text()


def test_the_engine_is_observed_only_while_somebody_listens():
    engine = Engine()
    hub, seen = StepHub(engine), []
    assert engine.observer is None
    hub.add(seen.append)
    hub.add(print)
    hub.remove(print)
    engine.observer(REPORT)
    assert seen == [REPORT] and hub.num_listeners == 1
    hub.remove(seen.append)
    hub.remove(seen.append)
    assert engine.observer is None and hub.num_listeners == 0


def test_a_listener_that_fails_is_dropped_and_others_go_on(caplog):
    engine = Engine()
    hub, seen = StepHub(engine), []

    def faulty(report):
        raise RuntimeError("a fault")

    hub.add(faulty)
    hub.add(seen.append)
    engine.observer(REPORT)
    engine.observer(REPORT)
    assert seen == [REPORT, REPORT] and hub.num_listeners == 1 and "a fault" in caplog.text


def test_a_full_disk_costs_lines_and_one_warning(caplog):
    trace = Trace(Path("/dev/full"), retry_s=0.0)
    for _ in range(50):
        trace(REPORT)
    trace.close()
    assert trace.num_dropped == 50
    assert len(caplog.records) == 1 and "No space left" in caplog.text


def test_a_vanished_folder_and_its_return(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "trace.jsonl"
    trace = Trace(path, retry_s=0.01)
    trace(REPORT)
    assert eventually(lambda: len(lines(path)) == 1)
    path.unlink()
    folder.rmdir()
    trace(REPORT)
    assert eventually(lambda: trace.num_dropped == 1)
    folder.mkdir()
    time.sleep(0.02)
    trace(REPORT)
    trace.close()
    assert len(lines(path)) == 1 and trace.num_dropped == 1
    assert [record.message.split(":")[0] for record in caplog.records] == ["trace", "trace"]


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path):
    path = tmp_path / "trace.jsonl"
    trace = Trace(path)
    trace(REPORT)
    assert eventually(lambda: len(lines(path)) == 1)
    path.rename(tmp_path / "old")
    trace(REPORT)
    trace.close()
    assert len(lines(path)) == len(lines(tmp_path / "old")) == 1


def test_a_disk_that_hangs_keeps_nobody_waiting(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)  # opening it waits for a reader that never comes
    trace = Trace(path, max_queued=10)
    start = time.monotonic()
    for _ in range(1000):
        trace(REPORT)
    trace.close(timeout=0.1)
    assert time.monotonic() - start < 5 and trace.num_dropped >= 980
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # let the thread end
    assert eventually(lambda: not trace._thread.is_alive() or trace._queue.empty())
    os.close(reader)


def test_lines_of_several_threads_stay_whole(tmp_path):
    path, start = tmp_path / "trace.jsonl", threading.Barrier(4)
    trace = Trace(path, max_queued=10_000)

    def write():
        start.wait()
        for _ in range(100):
            trace(REPORT)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace.close()
    assert len(lines(path)) == 400 and trace.num_dropped == 0


@pytest.mark.parametrize("path", ["missing/trace.jsonl", ".", "", "file/trace.jsonl"])
def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_read(tmp_path, monkeypatch, capsys, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert cli.main(["serve", "no/such/model", "--offline", "--port", "0", "--trace", path]) != 0
    error = capsys.readouterr().err
    assert "cannot write the trace to" in error and "--trace" in error and len(error.splitlines()) == 1, error


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)  # root may write anywhere
    try:
        with pytest.raises(UserError, match="Permission denied"):
            check_writable(tmp_path / "trace.jsonl")
    finally:
        if is_root:
            os.seteuid(0)
        tmp_path.chmod(0o700)


def test_a_trace_goes_on_where_it_was(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("before\n")
    check_writable(path)
    assert path.read_text() == "before\n"
    check_writable(tmp_path / "new.jsonl")
    assert (tmp_path / "new.jsonl").read_bytes() == b""


def test_a_pipe_without_a_reader_is_no_fault(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")
