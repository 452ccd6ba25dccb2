"""The sh of a fleet, run by the real sh: words and files to the byte, what a mark means, whom a stop ends."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fleet.support.lab import is_alive, members, wait_until

from eyas.fleet.machines.node import LocalNode
from eyas.fleet.running import scripts
from eyas.fleet.running.scripts import Owner
from eyas.recipes.plan import Container, EnvVar, File, Home, Launch, Mount, Ref

NODE = LocalNode()
HOSTILE = "a b'c\"d$(touch pwned)`id`;&|<>*?[x]~#!\\e\u00e9"
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
PROGRAM = "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps([sys.argv[2:], dict(os.environ)]))"


@pytest.fixture
def owner(tmp_path):
    owner = Owner(token=os.urandom(8).hex(), directory=f"{tmp_path}/{HOSTILE}")
    yield owner
    for pid in members(tmp_path):
        os.kill(pid, signal.SIGKILL)


def run(script):
    result = NODE.run(script)
    assert result.code == 0, result
    return result.out


def sleeper(*args):
    return Launch(name="server", argv=(sys.executable, "-SE", "-c", "import time; time.sleep(600)", *args))


def start(owner, launch, secrets=None):
    return run(scripts.start(owner, launch, {}, secrets or {})).strip()


def stop(owner, launch, mark, grace_s=5.0):
    run(scripts.stop(owner, launch, {}, mark, grace_s))


def state(owner, launch, mark, **options):
    return run(scripts.poll(owner, [(0, launch, mark)], 1 << 20, **options))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(TEXT, max_size=4), value=TEXT, secret=TEXT, content=TEXT)
def test_words_values_and_files_arrive_to_the_byte(owner, words, value, secret, content):
    out = Path(owner.directory, "out.json")
    files = [File(path=f"{HOSTILE}/x", content=content, mode=0o640)]
    run(scripts.prepare(owner, files, None))
    env = (
        EnvVar(name="VALUE", value=value),
        EnvVar(name="SECRET", value=Ref(name="S")),
        EnvVar(name="H", value=Home(path=value)),
    )
    launch = Launch(
        name="server", argv=(sys.executable, "-SE", "-c", PROGRAM, str(out), *words, Ref(name="S")), env=env
    )
    mark = start(owner, launch, {"S": secret})
    wait_until(lambda: state(owner, launch, mark).split() == ["0", "ended", "0"])
    argv, environ = json.loads(out.read_text())
    assert argv == [*words, secret]
    home = os.environ["HOME"] + (f"/{value}" if value else "")
    assert (environ["VALUE"], environ["SECRET"], environ["H"]) == (value, secret, home)
    written = Path(owner.directory, HOSTILE, "x")
    assert written.read_bytes() == content.encode() and stat.S_IMODE(written.stat().st_mode) == 0o640
    assert not list(Path(owner.directory).rglob("pwned")) and not Path("pwned").exists()
    stop(owner, launch, mark)


def test_an_engine_sees_the_cache_of_the_plan_and_no_other(owner, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", "/mine")
    for env in ((EnvVar(name="HF_HOME", value="/plan"),), ()):
        launch = Launch(name="server", argv=(sys.executable, "-SE", "-c", PROGRAM, f"{tmp_path}/out"), env=env)
        mark = start(owner, launch)
        wait_until(lambda launch=launch, mark=mark: state(owner, launch, mark).split() == ["0", "ended", "0"])
        environ = json.loads((tmp_path / "out").read_text())[1]
        assert (environ.get("HF_HOME"), environ.get("HF_HUB_CACHE")) == (("/plan", None) if env else (None, "/mine"))


def test_a_start_is_one_start(owner):
    launch = sleeper()
    mark = start(owner, launch)
    assert mark.split()[0] == "process" and start(owner, launch) == mark
    assert state(owner, launch, mark) == "0 alive\n"
    for folder in ("run", "logs"):
        assert stat.S_IMODE(Path(owner.directory, folder).stat().st_mode) == 0o700
    stop(owner, launch, mark)
    assert state(owner, launch, mark).split() == ["0", "ended"] and not is_alive(int(mark.split()[1]))
    stop(owner, launch, mark)  # once more does no harm


def test_a_reused_pid_is_somebody_else(owner):
    """The pid is right, the start time or the boot is not: neither alive, nor stopped."""
    stranger = subprocess.Popen([sys.executable, "-SE", "-c", "import time; time.sleep(600)"], start_new_session=True)
    launch = sleeper()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    began = Path(f"/proc/{stranger.pid}/stat").read_text().rsplit(") ", 1)[1].split()[19]
    try:
        for mark in (f"process {stranger.pid} {int(began) - 1} {boot}", f"process {stranger.pid} {began} other-boot"):
            assert state(owner, launch, mark).split() == ["0", "ended"]
        stop(owner, launch, f"process {stranger.pid} {int(began) - 1} {boot}")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_stop_without_a_mark_finds_what_was_started(owner):
    """As after a supervisor that was killed between starting and recording; even its folder may be gone."""
    launch = sleeper()
    pid = int(start(owner, launch).split()[1])
    stop(owner, launch, None)
    assert not is_alive(pid)
    pid = int(start(owner, launch).split()[1])
    shutil.rmtree(owner.directory)
    stop(owner, launch, None)
    assert not is_alive(pid)


def test_a_stop_ends_no_other_launch(owner):
    one, other = sleeper("1"), Launch(name="server-2", argv=sleeper().argv)
    mark, other_mark = start(owner, one), start(owner, other)
    stop(owner, one, mark)
    assert state(owner, other, other_mark) == "0 alive\n"
    stop(owner, other, other_mark)


def test_logs_are_read_on_and_trimmed(owner):
    launch = Launch(name="server", argv=("sh", "-c", "echo one; echo two >&2; exec sleep 600"))
    mark = start(owner, launch)
    cursor, text = "0", ""

    def read():
        nonlocal cursor, text
        cursor, _, more = run(scripts.log(owner, launch, cursor, 1 << 20)).partition("\n")
        text += more
        return text

    wait_until(lambda: read() == "one\ntwo\n")
    log = Path(owner.directory, "logs", "server.log")
    with log.open("a") as file:
        file.write("x" * 5000 + "\n")
    assert read() == "one\ntwo\n" + "x" * 5000 + "\n"
    run(scripts.poll(owner, [(0, launch, mark)], 1000))
    assert log.read_bytes() == b"" and log.with_name("server.log.1").stat().st_size == 5009
    assert stat.S_IMODE(log.with_name("server.log.1").stat().st_mode) == 0o600
    with log.open("a") as file:
        file.write("after\n")
    assert read().endswith("x\nafter\n")
    assert run(scripts.log(owner, launch, "0", 3)) == "6\ner\n"
    assert "one\n" in run(scripts.last_log(owner, launch, 1 << 20))
    stop(owner, launch, mark)
    mark = start(owner, launch)
    assert "after" in run(scripts.last_log(owner, launch, 1 << 20)), "a new start keeps the log of the last one"
    stop(owner, launch, mark)


def test_a_log_that_has_grown_is_cut_in_bounded_time_even_on_a_full_disk(owner):
    launch = sleeper()
    mark = start(owner, launch)
    log = Path(owner.directory, "logs", "server.log")
    with log.open("ab") as file:
        file.truncate(1 << 32)
        file.write(b"the end\n")
    run(scripts.poll(owner, [(0, launch, mark)], 1000))
    kept = log.with_name("server.log.1")
    assert log.stat().st_size == 0 and kept.stat().st_size == 8 << 20 and kept.read_bytes().endswith(b"the end\n")
    kept.unlink()
    kept.symlink_to("/dev/full")
    log.write_bytes(b"x" * 2000)
    assert run(scripts.poll(owner, [(0, launch, mark)], 1000)) == "0 alive\n" and log.stat().st_size == 0
    stop(owner, launch, mark)


@pytest.mark.slow
def test_every_script_passes_shellcheck(owner, tmp_path):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    mounts = (Mount(source=HOSTILE, target="/x"), Mount(source=Ref(name="S"), target=HOSTILE, read_only=True))
    box = Launch(
        name="box",
        argv=(HOSTILE, Ref(name="S")),
        env=(EnvVar(name="A", value=Ref(name="S")), EnvVar(name="B", value=HOSTILE)),
        container=Container(name="lab-box", image="i", options=(HOSTILE,), mounts=mounts),
    )
    inner = Launch(name="in", argv=(HOSTILE,), env=box.env, inside="box")
    containers, secrets = {"box": box.container}, {"S": "it's"}
    launches = (box, inner, sleeper(HOSTILE))
    texts = [
        scripts.prepare(owner, [File(path=HOSTILE, content=HOSTILE)], 8000),
        scripts.pull(HOSTILE),
        scripts.poll(owner, [(0, box, "container x"), (1, inner, "process 1 2 3")], 100, 8000),
        *(scripts.start(owner, launch, containers, secrets) for launch in launches),
        *(scripts.stop(owner, launch, containers, None, 1.5) for launch in launches),
        *(scripts.log(owner, launch, "0", 100) for launch in launches),
        *(scripts.last_log(owner, launch, 100) for launch in launches),
    ]
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.sh")
        # SC2317: each script has the whole library; SC2016: quoted text is meant as it is; SC1003: a backslash, too
        paths[-1].write_text(f"#!/bin/sh\n# shellcheck disable=SC2317,SC2016,SC1003\n{{\n{text}\n}} </dev/null\n")
    library = Path(scripts.__file__).with_name("library.sh")
    checked = subprocess.run(["shellcheck", library, *paths], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
