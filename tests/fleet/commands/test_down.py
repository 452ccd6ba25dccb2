"""`eyas down` whatever the supervisor, the record and the disk are like: all that was started is stopped."""

import os
import shutil
import signal
import sqlite3
import subprocess

import pytest
from tests.fleet.support.lab import free_port, is_alive, make_plan, members, wait_until
from tests.fleet.support.stand_ins import put

from eyas.fleet.running.state import LaunchRow, holder
from eyas.recipes.plan import Node


def kill_supervisor(lab, name="lab"):
    os.kill(holder(lab.home, name), signal.SIGKILL)
    wait_until(lambda: not lab.is_supervised(name))


def change(lab, statement):
    with sqlite3.connect(lab.home / "fleet.db") as db:
        db.execute(statement)
    db.close()


def test_two_at_once_after_the_supervisor_was_killed(lab):
    lab.up(lab.plan())
    kill_supervisor(lab)
    for process in [lab.start("down", "lab") for _ in range(2)]:
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, out + err
    assert not members(lab.tmp) and lab.row().status == "stopped"


def test_a_supervisor_that_has_only_begun(lab):
    lab.up(lab.plan())
    kill_supervisor(lab)
    lab.up("lab", "--detach")
    assert "lab is down" in lab.down()
    assert not members(lab.tmp) and lab.row().status == "stopped"


def test_an_up_that_still_prepares_is_ended(lab, monkeypatch):
    free = lab.tmp / "free"
    put(lab.tmp / "bin", "nvidia-smi", f"touch '{lab.tmp}/asked'; until [ -e '{free}' ]; do sleep 0.05; done")
    monkeypatch.setenv("PATH", f"{lab.tmp / 'bin'}:{os.environ['PATH']}")
    path = lab.plan()
    up = lab.start("up", path, sigint=signal.SIG_IGN)
    wait_until((lab.tmp / "asked").exists)
    assert "lab is down" in lab.down()
    out, err = up.communicate(timeout=100)
    assert up.returncode == 130 and "Traceback" not in err, out + err
    assert not lab.journal.exists() and lab.row() is None
    free.touch()
    wait_until(lambda: not members(lab.tmp))


def test_a_supervisor_that_does_not_react_is_named(lab):
    lab.limit(grace_s=0.1, stop_s=0.1)
    lab.up(lab.plan())
    pid = holder(lab.home, "lab")
    os.kill(pid, signal.SIGSTOP)
    code, _, err = lab.run("down", "lab")
    assert code == 1 and f"kill -9 {pid}; eyas down lab" in err
    os.kill(pid, signal.SIGKILL)
    lab.limit()
    lab.down()
    assert not members(lab.tmp)


@pytest.mark.parametrize("is_supervised", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_plan_that_cannot_be_read(lab, is_supervised):
    lab.up(lab.plan())
    if not is_supervised:
        kill_supervisor(lab)
    change(lab, "UPDATE deployments SET plan = json_set(plan, '$.choice.new_field', 1)")
    code, out, err = lab.run("ps")
    assert code == 0 and "unreadable" in out and "stop it first: eyas down lab" in out, err
    assert lab.run("models", "list")[0] == 0
    code, _, err = lab.run("up", "lab")
    assert code == 1 and err.count("eyas: error:") == 1 and "stop it first" in err
    assert "lab is down" in lab.down()
    assert not members(lab.tmp)
    assert "nothing is up" in lab.run("ps")[1]


@pytest.fixture
def small_disk(lab, monkeypatch):
    """The state folder on a file system of one megabyte; a function that fills it."""
    folder = lab.tmp / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting wants root")
    lab.home = folder / "home"
    lab.environ["EYAS_HOME"] = str(lab.home)
    monkeypatch.setenv("EYAS_HOME", str(lab.home))

    def fill():
        with pytest.raises(OSError, match="No space"), (folder / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    yield fill
    lab.clean_up()
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("is_supervised", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_full_disk_keeps_nobody_from_stopping(lab, small_disk, is_supervised):
    lab.up(lab.plan())
    pid = lab.journal_lines()[0]["pid"]
    small_disk()
    if not is_supervised:
        kill_supervisor(lab)
    code, _, err = lab.run("down", "lab")
    assert code == 1 and "lab is stopped, but that could not be recorded" in err and "full" in err
    assert not is_alive(pid)
    (lab.tmp / "small" / "ballast").unlink()
    lab.down()
    assert lab.row().status == "stopped"


def test_an_engine_that_dies_while_the_disk_is_full(lab, small_disk):
    lab.up(lab.plan())
    small_disk()
    os.kill(lab.journal_lines()[0]["pid"], signal.SIGKILL)
    wait_until(lambda: not lab.is_supervised())  # it cannot start what it cannot record
    assert not members(lab.tmp)
    (lab.tmp / "small" / "ballast").unlink()
    assert "Traceback" not in lab.logs()
    lab.up("lab")
    lab.down()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="wants ssh")
def test_a_machine_that_is_gone_for_good(lab, monkeypatch):
    monkeypatch.setenv("EYAS_SSH_OPTIONS", "-F /dev/null -p 1")  # where nobody listens
    store = lab.store()
    store.put(make_plan(lab.tmp / "node", free_port(), (), nodes=(Node(name="gone", ssh="me@127.0.0.1"),)))
    store.record("lab", "ready", "ready")
    change(lab, "UPDATE deployments SET ready_since = ready_since + 90000")  # a clock was set back
    code, out, _ = lab.run("ps")
    assert code == 0 and " 0s " in out
    store.launched("lab", LaunchRow(0, "process 1 2 3", "worker", "gone", "me@127.0.0.1", "exit 0"))
    code, _, err = lab.run("down", "lab")
    assert code == 1 and "worker (cannot reach gone" in err and "run eyas down again" in err and "--forget" in err
    assert store.launches("lab")
    out = lab.run("down", "lab", "--forget")[1]
    assert "given up: worker (cannot reach gone" in out and "lab is down" in out
    assert not store.launches("lab") and store.get("lab").was_ready
    store.close()


def test_a_deleted_state_folder_does_not_orphan_an_engine(lab):
    """No command would find it any more, so its supervisor stops it, also where a new folder has taken its place."""
    for is_new in (False, True):
        lab.up(lab.plan())
        pid = lab.journal_lines()[-1]["pid"]
        shutil.rmtree(lab.home)
        if is_new:
            assert "nothing is up" in lab.run("ps")[1]
        wait_until(lambda pid=pid: not is_alive(pid) and not members(lab.tmp))
