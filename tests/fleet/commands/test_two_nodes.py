"""A two-node plan between two network namespaces with their own sshd; the engine is a small program."""

import os
import signal
import subprocess
import sys

import msgspec
import pytest
from tests.fleet.support.lab import (
    Lab,
    engine,
    everything_written,
    is_alive,
    make_plan,
    members,
    wait_until,
    write_plan,
)
from tests.fleet.support.namespaces import ADDRESSES, Namespaces, why_not

from eyas.fleet.running.state import holder
from eyas.recipes.plan import EnvVar, File, Home, Launch, Node, Ref, Wait

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

PORT, WORKER_PORT = 8123, 20000
SECRET = "s3cret-of-two-nodes"


class Desk(Lab):
    """The lab, run by a person at the desk of the namespaces."""

    net = None

    def run(self, *argv):
        result = subprocess.run(
            self.net.command(sys.executable, "-m", "eyas", *argv), capture_output=True, text=True, timeout=250
        )
        return result.returncode, result.stdout, result.stderr

    def two_nodes(self):
        """A worker on b, then the server on a, which only its own machine can reach."""
        record = ["--journal", self.journal, "--env", "KEY", "--env", "RANK", "--env", "WHERE"]
        worker = engine(*record, "--host", ADDRESSES["b"], "--port", WORKER_PORT, name="worker")
        server = engine(*record, "--port", PORT, name="server")
        key = EnvVar(name="KEY", value=Ref(name="LAB_KEY"))
        where = EnvVar(name="WHERE", value=Home(path="x"))
        launches = [
            Launch(name="worker", node=1, argv=worker, env=(key, where, EnvVar(name="RANK", value="1"))),
            Launch(name="server", node=0, argv=server, env=(key, where, EnvVar(name="RANK", value="0"))),
        ]
        launches[0] = msgspec.structs.replace(launches[0], wait=Wait(port=WORKER_PORT))
        nodes = [Node(name=f"node-{name}", ssh=f"root@{ADDRESSES[name]}", address=ADDRESSES[name]) for name in "ab"]
        files = (File(path="hosts", content="a\nb\n", nodes=(0, 1)),)
        plan = make_plan(Home(path="of eyas/lab"), PORT, launches, files=files, nodes=nodes)
        choice = msgspec.structs.replace(plan.choice, directory=Home(path="of eyas/lab"), cache=Home(path="cache"))
        return write_plan(self.tmp / "lab.yaml", msgspec.structs.replace(plan, choice=choice))

    def newest(self):
        """The last start of each launch."""
        return {line["name"]: line for line in self.journal_lines()}


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    net = Namespaces(tmp_path_factory.mktemp("net"))
    yield net
    net.close()


@pytest.fixture
def desk(lab, net, monkeypatch):
    desk = Desk(lab.tmp, lab.environ["XDG_RUNTIME_DIR"])
    desk.net = net
    desk.limit(answer_s=2.0, lost_s=0.5, poll_s=0.1, max_restarts=20, grace_s=2.0)
    monkeypatch.setenv("EYAS_SSH_OPTIONS", net.ssh_options)
    monkeypatch.setenv("LAB_KEY", SECRET)
    monkeypatch.setattr(lab, "run", desk.run)  # for the end of the test
    yield desk
    net.mend()
    desk.run("down", "--all")
    net.mend()


@pytest.mark.slow
def test_order_environment_readiness_restart_and_a_clean_stop(desk, net):
    out = desk.up(desk.two_nodes())
    assert f"ssh -N -L {PORT}:127.0.0.1:{PORT} root@{ADDRESSES['a']}" in out
    worker, server = desk.journal_lines()
    assert (worker["name"], server["name"]) == ("worker", "server")
    assert (worker["net"], server["net"]) == (net.inode("b"), net.inode("a"))
    for line, name, rank in ((worker, "b", "1"), (server, "a", "0")):
        assert line["env"] == {"KEY": SECRET, "RANK": rank, "WHERE": str(net.home(name) / "x")}
        assert line["cwd"] == str(net.home(name) / "of eyas" / "lab")
        assert (net.home(name) / "of eyas" / "lab" / "hosts").read_text() == "a\nb\n"
    assert "ready" in desk.run("ps")[1]
    assert SECRET not in everything_written(desk.home, net.home("a"), net.home("b"))
    first = desk.newest()
    os.kill(first["worker"]["pid"], signal.SIGKILL)
    desk.wait_for_starts(4)
    desk.wait_for_events("worker was killed by SIGKILL", "starting worker", "starting server", "ready")
    second = desk.newest()
    assert not is_alive(first["server"]["pid"]), "the other machine's launch was stopped, too"
    assert all(is_alive(line["pid"]) for line in second.values())
    desk.down()
    assert not any(is_alive(line["pid"]) for line in second.values())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["link", "sshd"])
def test_a_machine_that_cannot_be_reached(desk, net, what):
    desk.up(desk.two_nodes())
    first = desk.newest()
    if what == "link":
        net.set_link("b", is_up=False)
    else:
        net.stop_sshd("b")
    desk.wait_for_events("ready", "node-b", "still to be stopped: worker")
    assert is_alive(first["worker"]["pid"]), "it cannot be stopped"
    assert not is_alive(first["server"]["pid"])
    code, _, err = desk.run("down", "lab")
    assert code == 1 and "worker" in err and "node-b" in err and "again" in err
    net.mend()
    desk.up("lab")
    second = desk.newest()
    assert second["worker"]["pid"] != first["worker"]["pid"] and not is_alive(first["worker"]["pid"])
    desk.down()
    assert not any(is_alive(line["pid"]) for line in second.values())
    assert not [pid for pid, words in members(desk.tmp).items() if "fake_engine" in words]


@pytest.mark.slow
def test_a_lone_machine_that_cannot_be_reached_goes_on(desk, net):
    """Neither who looks after it nor who takes over does anything to it before it answers."""
    server = Launch(name="server", argv=engine("--journal", desk.journal, "--port", PORT))
    node = Node(name="node-a", ssh=f"root@{ADDRESSES['a']}", address=ADDRESSES["a"])
    desk.up(write_plan(desk.tmp / "lab.yaml", make_plan(net.home("a") / "lab", PORT, (server,), nodes=(node,))))
    net.set_link("a", is_up=False)
    desk.wait_for_events("ready", "node-a")
    assert "unreachable" in desk.run("ps")[1]
    os.kill(holder(desk.home, "lab"), signal.SIGKILL)
    wait_until(lambda: not desk.is_supervised())
    assert "it has no supervisor; take it over: eyas up lab" in desk.run("ps")[1]
    assert desk.run("up", "lab", "--detach")[0] == 0
    desk.wait_for_events("taking over", "node-a")
    net.set_link("a", is_up=True)
    wait_until(lambda: desk.row().status == "ready")
    assert desk.row().restarts == 0 and len(desk.journal_lines()) == 1
    assert is_alive(desk.newest()["server"]["pid"])
    desk.down()


def test_refused_and_unknown(desk, net, monkeypatch):
    path = desk.two_nodes()
    net.stop_sshd("b")
    code, _, err = desk.run("up", path)
    assert code == 1 and "connection refused" in err and "systemctl start ssh" in err
    net.mend()
    monkeypatch.setenv("EYAS_SSH_OPTIONS", net.ssh_options.replace("/key ", "/host_key "))
    code, _, err = desk.run("up", path)
    assert code == 1 and "does not accept your key" in err and "ssh-copy-id" in err
    assert not desk.journal.exists()
