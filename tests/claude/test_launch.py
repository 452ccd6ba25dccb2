"""The client takes over the process, and its settings are gone however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.claude.support.stand_in_client import Client, is_gone

from eyas.base.errors import UserError
from eyas.claude.launch import find_client, start

KEY = "a key for launching"
SETTINGS = {"env": {"ANTHROPIC_AUTH_TOKEN": KEY}}
CODE = "import os, sys; from eyas.claude.launch import start; start(sys.argv[1], sys.argv[2:], {}, os.environ)"


@pytest.fixture
def client(tmp_path):
    return Client(tmp_path)


@pytest.fixture
def runtime(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def _take_signals():
    for number in (signal.SIGINT, signal.SIGHUP):  # a script's background ignores one, nohup the other
        signal.signal(number, signal.SIG_DFL)


def launch(client, runtime, *args, program=None, **options):
    code = CODE.replace("{}", repr(SETTINGS))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(program or client.program), *args],
        env=os.environ | {"XDG_RUNTIME_DIR": str(runtime), "MINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_take_signals,
        **options,
    )


def test_the_client_has_everything_and_leaves_nothing(client, runtime):
    process = launch(client, runtime, "-p", "what is it?", "--", "*")
    out, error = process.communicate(b"of a pipe", timeout=20)
    report = client.report()
    path = Path(report["path"])
    assert (process.returncode, out, error) == (0, b"the client's output\n", b"")
    assert report["argv"] == ["--settings", str(path), "-p", "what is it?", "--", "*"]
    assert report["settings"] == SETTINGS and report["mode"] == 0o600 and path.parent == runtime
    assert KEY not in report["command_line"] + str(report["environ"])
    assert report["environ"]["MINE"] == "1" and report["input"] == "of a pipe"
    assert report["pid"] == process.pid  # it is the process that a shell or a service manager knows
    assert report["children"] == "" and sorted(report["descriptors"]) == ["0", "1", "2", "3"]  # 3 lists them
    assert int(report["environ"]["IGNORED"], 16) & (1 << signal.SIGPIPE - 1) == 0
    assert is_gone(path) and not list(runtime.iterdir())


def test_its_exit_code(client, runtime):
    process = launch(client, runtime, "fail")
    process.communicate(timeout=20)
    assert process.returncode == 7


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_signals(client, runtime, name):
    process = launch(client, runtime, "wait", start_new_session=True)
    path = Path(client.report()["path"])
    assert path.exists()
    os.killpg(process.pid, getattr(signal, name))  # as a terminal does; a watcher in the group would be hit, too
    process.communicate(timeout=20)
    assert process.returncode == -getattr(signal, name)
    assert is_gone(path)


def test_a_client_that_ends_by_itself_when_asked_to(client, runtime):
    process = launch(client, runtime, "wait", "polite")
    path = Path(client.report()["path"])
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 9 and is_gone(path)


def test_the_settings_stay_while_the_client_is_stopped(client, runtime):
    process = launch(client, runtime, "wait")
    path = Path(client.report()["path"])
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status) and path.exists()
    process.send_signal(signal.SIGCONT)
    process.terminate()
    process.communicate(timeout=20)
    assert is_gone(path)


def test_a_program_that_cannot_be_started(client, runtime, tmp_path):
    program = tmp_path / "broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    process = launch(client, runtime, program=program)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 1 and f"UserError: cannot start {program}: No such file".encode() in error
    assert not list(runtime.iterdir())


def test_without_a_runtime_folder(client, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = launch(client, tmp_path / "nowhere")
    process.communicate(timeout=20)
    path = Path(client.report()["path"])
    assert process.returncode == 0 and path.parent == tmp_path and is_gone(path)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--settings", "mine.json"], "--settings is what eyas passes"),
        (["-p", "x", "--settings=mine.json"], "--settings is what eyas passes"),
        (["--bg", "x"], "outlives its settings; for --bg use: eyas claude write"),
        (["x", "--background"], "for --background use"),
    ],
)
def test_arguments_that_cannot_work(args, words):
    with pytest.raises(UserError, match=words):
        start("/bin/false", args, SETTINGS, {})


def test_finding_it(client, home, tmp_path):
    path = {"PATH": f"/nowhere:{tmp_path}"}
    assert find_client(None, path) == str(client.program)
    assert find_client(str(client.program), {}) == str(client.program)
    assert find_client("claude", path) == str(client.program)
    with pytest.raises(UserError, match=r"--binary .*client\.py is no program"):
        find_client(str(tmp_path / "client.py"), {})
    with pytest.raises(UserError, match=r"Claude Code is not installed; get it with: npm install -g @anthropic-ai/"):
        find_client(None, {"PATH": "/nowhere"})
    place = home / ".local" / "bin" / "claude"
    place.parent.mkdir(parents=True)
    place.symlink_to(client.program)
    assert find_client(None, {"PATH": "/nowhere"}) == str(place)
