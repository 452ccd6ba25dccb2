"""Scripts on this machine and what ssh's refusals become; the ssh that works is in test_two_nodes.py."""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.support.lab import free_port, wait_until
from tests.fleet.support.stand_ins import put

from eyas.base.errors import UserError
from eyas.fleet.machines.node import LocalNode, NodeError, SshNode, runner
from eyas.recipes.plan import Node


def test_a_script_and_how_it_ended(monkeypatch):
    monkeypatch.setenv("EYAS_HOME", "/x")
    monkeypatch.setenv("OTHER", "y")
    node = LocalNode("here")
    assert node.run('echo "${EYAS_HOME-none} $OTHER"; echo bad >&2; cat; exit 3') == (3, "none y\n", "bad\n")
    assert node.run("printf '\\377\u00e9'").out == "\ufffd\u00e9"
    with pytest.raises(ValueError, match="NUL"):
        node.run("echo \0")


def test_half_a_script_does_nothing(tmp_path):
    result = LocalNode().run(f"touch {tmp_path}/x\nif true; then")
    assert result.code == 2 and "yntax" in result.err and not (tmp_path / "x").exists()


def test_a_script_that_hangs_is_ended_with_what_it_runs(tmp_path):
    with pytest.raises(NodeError, match=r"here did not answer within 0\.5 s"):
        LocalNode("here").run(f"echo $$ >{tmp_path}/pid; sleep 600", timeout_s=0.5)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_what_a_script_leaves_behind_holds_nobody_up(tmp_path):
    LocalNode().run(f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 600' </dev/null >/dev/null 2>&1 &")
    pid = wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    os.kill(int(pid), 9)


def test_threads_share_a_node():
    node, out = LocalNode(), []
    threads = [threading.Thread(target=lambda n=n: out.append(node.run(f"echo {n}").out)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(out) == [f"{n}\n" for n in range(8)]


def test_an_interrupt_just_as_a_script_has_ended_is_only_an_interrupt(monkeypatch):
    def interrupted(process, *args):
        process.stdin.close()
        process.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LocalNode().run(":")


@pytest.fixture
def environ(tmp_path):
    return {"XDG_RUNTIME_DIR": str(tmp_path), "EYAS_SSH_OPTIONS": f"-F /dev/null -p {free_port()}"}


def test_ssh_refused(environ):
    node = runner(Node(name="b", ssh="root@127.0.0.1"), environ)
    for ask in (lambda: node.run("echo x"), lambda: node.transport("127.0.0.1", 80)):
        with pytest.raises(NodeError, match=r"cannot reach b \(root@127\.0\.0\.1\): connection refused; start its ssh"):
            ask()


def test_ssh_unknown_host(environ):
    with pytest.raises(NodeError, match="no machine has that name"):
        SshNode("b", "no-such-host.invalid", environ).run("echo x")


@pytest.mark.parametrize("destination", ["-oProxyCommand=x", "", "a b", "a\nb"])
def test_a_destination_is_no_option(environ, destination):
    with pytest.raises(UserError, match="is no ssh destination"):
        SshNode("b", destination, environ)


def test_sockets_are_private(short_path):
    environ = {"XDG_RUNTIME_DIR": str(short_path)}
    SshNode("b", "x", environ)
    folder = short_path / "eyas"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(UserError, match="not yours alone"):
        SshNode("b", "x", environ)
    folder.rmdir()
    folder.symlink_to("/tmp")
    with pytest.raises(UserError, match="not yours alone"):
        SshNode("b", "x", environ)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A stand-in for ssh that runs its command here, after a banner; what it was asked, call by call."""
    last = 'for word; do last=$word; done\ncase "$*" in *" -O "*) exit 0 ;; esac\necho welcome\nexec sh -c "$last"'
    put(tmp_path / "bin", "ssh", f'printf "%s\\n" "$*" >>{tmp_path}/asked\n{last}')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return lambda: (tmp_path / "asked").read_text().splitlines()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's, as pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="eyas-") as folder:
        yield Path(folder)


def test_supervision_outlives_the_last_logout(short_path, asked, monkeypatch):
    """logind deletes XDG_RUNTIME_DIR then: the sockets of the next ssh are elsewhere."""
    runtime, other = short_path / "r", short_path / "t"
    runtime.mkdir()
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    node = SshNode("b", "x", {"XDG_RUNTIME_DIR": str(runtime)})
    assert node.run("echo one").out == "one\n"
    shutil.rmtree(runtime)
    assert node.run("echo two").out == "two\n"
    first, second = asked()
    assert f"ControlPath={runtime}/eyas/" in first and f"ControlPath={other}/eyas-{os.getuid()}/" in second


def test_what_a_startup_file_prints_is_no_answer(environ, asked):
    assert SshNode("b", "x", environ).run("echo 1; echo 2; exit 3") == (3, "1\n2\n", "")


@pytest.mark.parametrize(("host", "target"), [("::1", "[::1]:80"), ("127.0.0.1", "127.0.0.1:80")])
def test_what_is_forwarded(environ, asked, host, target):
    SshNode("b", "x", environ).transport(host, 80)
    assert f".http:{target} --" in asked()[0]
