"""Containers, against a stand-in for docker's command line that records the calls and starts the commands as processes.

That docker itself takes the calls is not shown here.
"""

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from tests.fleet.support.lab import engine, everything_written, free_port, is_alive, members, wait_until
from tests.fleet.support.stand_ins import put

from eyas.recipes.plan import Container, EnvVar, Home, Launch, Mount, Ref, Wait

SECRET = "s3cret-of-a-container"


@pytest.fixture
def docker(lab, monkeypatch):
    """The folder of the stand-in."""
    folder = lab.tmp / "docker"
    folder.mkdir()
    program = Path(__file__).parents[1] / "support" / "fake_docker.py"
    put(lab.tmp / "bin", "docker", f'exec {shlex.quote(sys.executable)} -SE {shlex.quote(str(program))} "$@"')
    monkeypatch.setenv("PATH", f"{lab.tmp / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(folder))
    monkeypatch.setenv("HOME", str(lab.tmp / "person"))  # which is mounted, and made if it is not there
    monkeypatch.setenv("LAB_KEY", SECRET)
    return folder


def calls(docker, verb):
    return [call for call in map(json.loads, (docker / "calls").read_text().splitlines()) if call[0] == verb]


def container_plan(lab, *, name="lab-server"):
    port = free_port()
    record = ["--journal", lab.journal, "--env", "KEY", "--env", "PLAIN", "--env", "EYAS_HOME"]
    env = (EnvVar(name="KEY", value=Ref(name="LAB_KEY")), EnvVar(name="PLAIN", value="it's $x"))
    box = Container(
        name=name,
        image="example.org/an/image:1",
        options=("--gpus", "all", "--network", "host"),
        mounts=(
            Mount(source=str(lab.tmp / 'a, "b" $c'), target="/data", read_only=True),
            Mount(source=Home(path="."), target="/h"),
        ),
    )
    outer = Launch(
        name="box", argv=engine(*record, "--say", "box up", name="box"), env=env, container=box, wait=Wait(log="box up")
    )
    inner = Launch(name="server", argv=engine(*record, "--port", port, name="server"), env=env, inside="box")
    return lab.plan(launches=(outer, inner), port=port)


@pytest.mark.slow
def test_run_exec_restart_stop(lab, docker):
    lab.up(container_plan(lab), "--force")
    box, server = lab.journal_lines()
    assert box["env"] == server["env"] == {"KEY": SECRET, "PLAIN": "it's $x", "EYAS_HOME": None}
    (run,) = calls(docker, "run")
    token = lab.row().token
    assert run[:7] == ["run", "-d", "--name", "lab-server", "--label", f"eyas.deployment={token}", "--log-driver"]
    assert run[12:16] == ["--gpus", "all", "--network", "host"]
    assert 'type=bind,"source={}",target=/data,readonly'.format(str(lab.tmp / 'a, ""b"" $c')) in run
    assert f"type=bind,source={os.environ['HOME']}/.,target=/h" in run
    assert "KEY" in run and "PLAIN=it's $x" in run
    words = run[run.index("example.org/an/image:1") + 1 :]
    assert words[: len(engine(name="box"))] == list(engine(name="box"))
    assert calls(docker, "pull") == [["pull", "-q", "example.org/an/image:1"]]
    assert (lab.tmp / 'a, "b" $c').is_dir(), "docker would have made it, as root"
    assert SECRET not in everything_written(lab.home, lab.tmp / "node")
    assert "box | box up" in lab.run("logs", "lab")[1]
    os.kill(box["pid"], signal.SIGKILL)
    lab.wait_for_starts(4)
    lab.wait_for_events("box was killed by SIGKILL", "starting again", "ready")
    assert not is_alive(server["pid"])
    lab.down()
    assert not any(is_alive(line["pid"]) for line in lab.journal_lines()) and not members(lab.tmp)
    assert {call[-1] for call in calls(docker, "rm")} == {"lab-server"}
    assert not list(docker.glob("*/config.json"))
    assert "box | box up" in lab.run("logs", "lab")[1], "its log outlives the container"


@pytest.mark.slow
def test_a_daemon_that_does_not_answer_is_no_death(lab, docker):
    lab.limit(lost_s=1000)
    lab.up(container_plan(lab), "--force")
    (docker / "broken").touch()
    lab.wait_for_events("ready", "here: docker: Cannot connect")
    assert lab.row().status == "unreachable"
    (docker / "broken").unlink()
    wait_until(lambda: lab.row().status == "ready")
    assert len(lab.journal_lines()) == 2
    lab.down()


def test_somebody_elses_container_is_left_alone(lab, docker):
    theirs = docker / "lab-server"
    theirs.mkdir()
    (theirs / "config.json").write_text(
        json.dumps({"id": "x", "folder": str(theirs), "labels": {}, "pid": os.getpid()})
    )
    code, _, err = lab.run("up", container_plan(lab), "--force")
    assert code == 1 and "container lab-server exists and is none of this deployment's" in err
    assert (theirs / "config.json").exists()
