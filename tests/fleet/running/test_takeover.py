"""A supervisor that is killed: the engines go on, and `ps`, `up` and `down` find them by what they are known by."""

import json
import os
import signal
import threading

import msgspec
import pytest
from tests.fleet.support.lab import (
    Lab,
    engine,
    everything_written,
    free_port,
    is_alive,
    members,
    wait_until,
    write_plan,
)

from eyas.fleet.preflight.plan_file import read_plan
from eyas.fleet.running.state import holder
from eyas.recipes.plan import EnvVar, EvidenceRow, Launch, Ref


def kill_supervisor(lab):
    os.kill(holder(lab.home, "lab"), signal.SIGKILL)
    wait_until(lambda: not lab.is_supervised())


def status(lab):
    return json.loads(lab.run("ps", "--json")[1])["status"]


def test_ps_up_and_down_after_the_supervisor_was_killed(lab):
    path = lab.plan()
    lab.up(path)
    pid = lab.journal_lines()[0]["pid"]
    kill_supervisor(lab)
    assert is_alive(pid) and status(lab) == "unsupervised"
    assert "eyas up lab" in lab.run("ps")[1]
    assert "taking over" in lab.up("lab")
    assert len(lab.journal_lines()) == 1 and is_alive(pid), "the same engine goes on"
    assert status(lab) == "ready" and lab.row().restarts == 0

    os.kill(pid, signal.SIGKILL)  # the new supervisor does its work
    lab.wait_for_starts(2)
    wait_until(lambda: lab.row().status == "ready")
    kill_supervisor(lab)
    lab.down()
    assert not members(lab.tmp) and lab.row().status == "stopped"


def test_an_engine_that_died_unsupervised_is_started_anew(lab):
    lab.up(lab.plan("--children"))
    pid = lab.journal_lines()[0]["pid"]
    kill_supervisor(lab)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: status(lab) == "dead")
    lab.up("lab")
    assert len(lab.journal_lines()) == 2
    lab.down()
    assert not members(lab.tmp), "nor a child of the first"


def test_killed_while_starting(lab):
    green = lab.tmp / "green"
    lab.up(lab.plan("--green-file", green), "--detach")
    lab.wait_for_starts(1)
    wait_until(lambda: all(lab.marks()))  # a supervisor that dies before it knows the process would start a new one
    kill_supervisor(lab)
    green.touch()
    lab.up("lab")
    assert len(lab.journal_lines()) == 1
    lab.down()


def test_another_plan_of_the_name_is_refused(lab):
    port = free_port()
    path = lab.plan(port=port)
    lab.up(path)
    plan = msgspec.structs.replace(read_plan(path), evidence=(EvidenceRow(part="all", level="ran on this hardware"),))
    assert "lab is up already" in lab.up(write_plan(path, plan)), "it would start the same"
    code, _, err = lab.run("up", lab.plan("--slow", 0.1, port=port))
    assert code == 1 and "lab is up with another plan; stop it first: eyas down lab" in err
    code, _, err = lab.run("up", "lab", "--context", "8k")
    assert code == 1 and "is a plan already" in err
    code, _, err = lab.run("up", "lab", "--node", "a@b", "--node", "c@d")
    assert code == 1 and "the plan has 1 node, --node names 2" in err
    lab.down()


@pytest.mark.slow
def test_two_ups_at_once_start_one(lab):
    path = lab.plan()
    results = []
    ups = [threading.Thread(target=lambda: results.append(lab.start("up", path).communicate())) for _ in range(2)]
    for up in ups:
        up.start()
    for up in ups:
        up.join()
    assert len(lab.journal_lines()) == 1, results
    lab.down()


def test_two_people_on_one_machine_do_not_mix(lab, monkeypatch):
    """The same name and folder: the second one is refused and neither stops what is the other's."""
    lab.up(lab.plan())
    other = Lab(lab.tmp / "other", lab.environ["XDG_RUNTIME_DIR"])
    other.tmp.mkdir()
    path = other.plan(directory=lab.tmp / "node")
    monkeypatch.setenv("EYAS_HOME", other.environ["EYAS_HOME"])
    code, _, err = other.run("up", path)
    assert code == 1 and "another eyas runs server in" in err
    monkeypatch.setenv("EYAS_HOME", lab.environ["EYAS_HOME"])
    assert is_alive(lab.journal_lines()[0]["pid"]) and lab.row().status == "ready"
    assert lab.row().token in (lab.tmp / "node" / "run" / "server").read_text()
    lab.down()


def test_secrets_are_written_nowhere(lab, monkeypatch):
    secret = "s3cret'$(id)\\-of-a-plan"
    monkeypatch.setenv("LAB_KEY", secret)
    port = free_port()
    launch = Launch(
        name="server",
        argv=engine("--port", port, "--journal", lab.journal, "--key-env", "THEIRS"),
        env=(EnvVar(name="THEIRS", value=Ref(name="LAB_KEY")),),
    )
    found = []
    stop = threading.Event()

    def look():
        while not stop.is_set():
            found.append("-of-a-plan" in everything_written(lab.tmp))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        lab.up(lab.plan(launches=(launch,), port=port, api_key_env="LAB_KEY"))
        os.kill(lab.journal_lines()[0]["pid"], signal.SIGKILL)
        lab.wait_for_starts(2)
        wait_until(lambda: lab.row().status == "ready")
        lab.down()
    finally:
        stop.set()
        looker.join()
    assert found and not any(found)
