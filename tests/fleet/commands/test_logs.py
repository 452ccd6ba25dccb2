"""`eyas logs` of a deployment that is recorded, with logs as engines leave them."""

import socket

import pytest
from tests.fleet.support.lab import make_plan

from eyas.fleet.commands import logs as logs_command
from eyas.recipes.plan import Launch, Node

SERVER = Launch(name="server", argv=("x",))


@pytest.fixture
def logs(lab):
    """The folder of the logs of `lab`, whose launches are never started."""
    folder = lab.tmp / "node" / "logs"
    folder.mkdir(parents=True)
    store = lab.store()
    store.put(make_plan(lab.tmp / "node", 8000, (SERVER,)))
    store.close()
    return folder


def test_a_log_that_was_cut_is_shown_with_what_came_before(lab, logs):
    (logs / "server.log").write_text("")
    (logs / "server.log.1").write_text("one\ntwo\n")
    assert lab.run("logs", "lab") == (0, "one\ntwo\n", "")
    (logs / "server.log").write_text("three\n")
    assert lab.run("logs", "lab")[1] == "one\ntwo\nthree\n"
    (logs / "server.log").write_text("x" * (64 << 10))
    assert lab.run("logs", "lab")[1] == "x" * (64 << 10) + "\n"


def test_escape_sequences_do_not_reach_the_terminal(lab, logs):
    (logs / "server.log").write_text("\x1b[31mERROR\x1b[0m\x1b]0;title\x07 at\r50%\r100%\nlast")
    assert lab.run("logs", "lab")[1] == "ERROR at\n50%\n100%\nlast\n"
    (logs / "server.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\x1b[2J\n")
    assert "\x1b" not in lab.run("logs", "lab", "--explain")[1]
    store = lab.store()
    store.record("lab", "failed", "\x1b[2Jdocker: no\x07")
    store.close()
    assert lab.run("logs", "lab", "--events")[1].endswith("failed      docker: no?\n")


def test_a_line_that_is_being_written_is_not_torn(lab, logs, monkeypatch):
    log = logs / "server.log"
    log.write_text("one\ntw")
    more = iter(["o\nthr", "ee"])

    def is_supervised(folder, name):
        """Whether it goes on; the engine writes at each look."""
        text = next(more, "")
        with log.open("a") as file:
            file.write(text)
        return bool(text)

    monkeypatch.setattr(logs_command, "is_supervised", is_supervised)
    monkeypatch.setattr(logs_command, "FOLLOW_S", 0.01)
    assert lab.run("logs", "lab", "-f") == (0, "one\ntwo\nthree\n", "")


def test_the_log_of_a_machine_that_cannot_be_reached_is_a_failure(lab, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("EYAS_SSH_OPTIONS", f"-F none -p {port}")
    store = lab.store()
    store.put(make_plan(lab.tmp / "node", 8000, (SERVER,), nodes=(Node(name="far", ssh="nobody@127.0.0.1"),)))
    store.close()
    code, out, err = lab.run("logs", "lab")
    assert (code, out) == (1, "") and "cannot reach far" in err
