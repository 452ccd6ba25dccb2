"""Joining two machines: the pair of ports that is up gets the addresses, keys go to the right places."""

import os
import shutil
import subprocess

import pytest
import yaml
from tests.recipes.support.plans import plan

from eyas.recipes.emit.two_nodes import render
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.plan import Launch, Node

LAUNCH = Launch(name="x", argv=("y",))
NODES = (
    Node(name="spark a\nrm -rf x", address="192.168.200.12"),
    Node(name="b", ssh="b", address="192.168.200.13", interfaces=("enp1s0f0np0", "enP2p1s0f0np0")),
)


def files_of(nodes=NODES):
    return render(plan([LAUNCH], nodes=nodes, box=parse_box("2xspark")))


def test_addresses_are_the_playbooks():
    files = files_of()
    read = [yaml.safe_load(files[f"netplan-{rank}.yaml"])["network"] for rank in (0, 1)]
    ports = [{name: port["addresses"] for name, port in one["ethernets"].items()} for one in read]
    assert ports == [
        {"enp1s0f1np1": ["192.168.200.12/24"], "enP2p1s0f1np1": ["192.168.200.14/24"]},
        {"enp1s0f0np0": ["192.168.200.13/24"], "enP2p1s0f0np0": ["192.168.200.15/24"]},
    ]
    assert all(port["dhcp4"] is False for one in read for port in one["ethernets"].values())


@pytest.mark.parametrize(
    "nodes",
    [NODES[:1], (NODES[0], Node(name="b", ssh="b", address="spark-b.local")), (Node(name="a"), NODES[1])],
)
def test_other_networks_are_somebody_elses(nodes):
    assert files_of(nodes) == {}


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say():
    done = subprocess.run(["shellcheck", "-"], input=files_of()["two-nodes.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def run(tmp_path, *words, path=None):
    script = tmp_path / "two-nodes.sh"
    script.write_text(files_of()["two-nodes.sh"])
    env = {"PATH": path or os.environ["PATH"], "HOME": str(tmp_path / "home")}
    return subprocess.run(["sh", script, *words], env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "0 or 1"), (("network",), "0 or 1"), (("keys", "2"), "0 or 1"), (("x", "0"), "usage"), ((" ", "1"), "usage")],
)
def test_what_is_missing_is_said(tmp_path, words, message):
    done = run(tmp_path, *words)
    assert done.returncode == 1
    assert message in done.stderr


def test_keys_are_made_once_and_copied_to_the_other(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ssh-copy-id").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{tmp_path}/copied\n')
    (tools / "ssh-copy-id").chmod(0o755)
    ssh = tmp_path / "home/.ssh"
    ssh.mkdir(parents=True)
    (ssh / "authorized_keys").write_text("ssh-ed25519 AAAA somebody\n")
    for _ in range(2):
        done = run(tmp_path, "keys", "0", path=f"{tools}:{os.environ['PATH']}")
        assert done.returncode == 0, done.stderr
    public = (ssh / "id_ed25519.pub").read_text()
    assert (ssh / "authorized_keys").read_text() == f"ssh-ed25519 AAAA somebody\n{public}"
    assert (tmp_path / "copied").read_text().splitlines() == ["-i", f"{ssh}/id_ed25519.pub", "192.168.200.13"] * 2


# A network of its own with one pair of ports that is up; /etc is a copy that vanishes with it.
MACHINE = """\
set -eu
cp -r /etc /dev/shm/etc.$$
mount -t tmpfs -o mode=755 tmpfs /etc
cp -r /dev/shm/etc.$$/. /etc
rm -rf /dev/shm/etc.$$
mkdir -p /etc/netplan
ip link add "$1" type veth peer name "$2"
mount -t sysfs sysfs /sys
ip link set "$1" up
[ "$3" = down ] || ip link set "$2" up
tries=0  # the kernel notices a moment later that a port is up
until [ "$3" = down ] || [ "$(cat "/sys/class/net/$1/operstate" "/sys/class/net/$2/operstate" | uniq)" = up ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || exit 9
    sleep 0.1
done
code=0
sh "$0" network 0 || code=$?
stat -c %a /etc/netplan/40-eyas-link.yaml 2>/dev/null || :
cat /etc/netplan/40-eyas-link.yaml 2>/dev/null || :
exit "$code"
"""


def can_unshare() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "ip"))
    return tools and subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True).returncode == 0


def on_a_machine(tmp_path, first, second, state):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "netplan").write_text('#!/bin/sh\necho "netplan $*"\n')
    (tools / "netplan").chmod(0o755)
    script = tmp_path / "two-nodes.sh"
    script.write_text(files_of()["two-nodes.sh"])
    env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    command = ["unshare", "--mount", "--net", "sh", "-c", MACHINE, script, first, second, state]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(not can_unshare(), reason="needs root, for a network and mounts of its own")
@pytest.mark.parametrize("pair", [("enp1s0f1np1", "enP2p1s0f1np1"), ("enp1s0f0np0", "enP2p1s0f0np0")])
def test_the_pair_that_is_up_gets_the_addresses(tmp_path, pair):
    done = on_a_machine(tmp_path, *pair, "up")
    assert done.returncode == 0, done.stderr
    assert "netplan apply" in done.stdout
    assert ("the plan names enp1s0f1np1" in done.stdout) == (pair[0] == "enp1s0f0np0")
    mode, _, written = done.stdout.partition("600\n")
    assert mode != done.stdout, "only root may read it"
    ports = yaml.safe_load(written)["network"]["ethernets"]
    assert {name: port["addresses"] for name, port in ports.items()} == {
        pair[0]: ["192.168.200.12/24"],
        pair[1]: ["192.168.200.14/24"],
    }


@pytest.mark.skipif(not can_unshare(), reason="needs root, for a network and mounts of its own")
def test_no_pair_up_is_said_and_nothing_is_written(tmp_path):
    done = on_a_machine(tmp_path, "enp1s0f1np1", "enP2p1s0f1np1", "down")
    assert done.returncode == 1
    assert "no pair of ports is up; is the cable in" in done.stderr
    assert "network:" not in done.stdout
