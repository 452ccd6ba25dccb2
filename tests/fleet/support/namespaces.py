"""Two machines without a second machine: network namespaces with a bridge between them, each with its own sshd.

`desk` is where a person sits, `a` and `b` are nodes with homes of their own. Files and process numbers are shared.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

ADDRESSES = {"desk": "10.83.0.1", "a": "10.83.0.2", "b": "10.83.0.3"}
SSHD = "/usr/sbin/sshd"
CONFIG = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
SetEnv HOME={home}
"""


def why_not():
    """Why this machine cannot have them; None: it can."""
    if os.geteuid() != 0:
        return "network namespaces want root"
    for program in ("ip", "ssh", "ssh-keygen", SSHD):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    probe = f"eyas-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode != 0:
        return "ip netns add is not permitted here"
    is_bridged = subprocess.run(["ip", "-n", probe, "link", "add", "br0", "type", "bridge"], capture_output=True)
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return None if is_bridged.returncode == 0 else "this kernel has no bridges"


class Namespaces:
    """Made on construction; `close` removes them and ends their sshds."""

    def __init__(self, folder):
        self._folder = folder
        self._prefix = f"eyas{os.getpid()}"
        self._daemons = {}
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f"]
        subprocess.run([*keygen, folder / "key"], check=True)
        subprocess.run([*keygen, folder / "host_key"], check=True)
        host_key = (folder / "host_key.pub").read_text()
        lines = [f"{address} {host_key}" for address in ADDRESSES.values()]
        (folder / "known_hosts").write_text("".join(lines))
        for name in ADDRESSES:
            self._ip("netns", "add", self.netns(name))
            self._ip("-n", self.netns(name), "link", "set", "lo", "up")
        self._ip("-n", self.netns("desk"), "link", "add", "br0", "type", "bridge")
        self._ip("-n", self.netns("desk"), "address", "add", f"{ADDRESSES['desk']}/24", "dev", "br0")
        self._ip("-n", self.netns("desk"), "link", "set", "br0", "up")
        for name in ("a", "b"):
            peer = ["peer", "name", f"to-{name}", "netns", self.netns("desk")]
            self._ip("-n", self.netns(name), "link", "add", "eth0", "type", "veth", *peer)
            self._ip("-n", self.netns("desk"), "link", "set", f"to-{name}", "master", "br0", "up")
            self._ip("-n", self.netns(name), "address", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
            self.set_link(name, is_up=True)
            self.home(name).mkdir()
            self.start_sshd(name)

    @property
    def ssh_options(self):
        """Nothing of the person's own ssh; and little patience, so that tests are short."""
        return (
            f"-F /dev/null -i {self._folder}/key -o UserKnownHostsFile={self._folder}/known_hosts "
            "-o ServerAliveInterval=1 -o ServerAliveCountMax=1 -o ConnectTimeout=2"
        )

    def netns(self, name):
        return f"{self._prefix}-{name}"

    def home(self, name):
        return self._folder / f"home of {name}"

    def inode(self, name):
        """What /proc/PID/ns/net says of a process that runs there."""
        return f"net:[{Path('/run/netns', self.netns(name)).stat().st_ino}]"

    def command(self, *argv):
        """`argv` as the person at the desk would run it."""
        return ["ip", "netns", "exec", self.netns("desk"), *map(str, argv)]

    def set_link(self, name, *, is_up):
        self._ip("-n", self.netns(name), "link", "set", "eth0", "up" if is_up else "down")

    def start_sshd(self, name):
        Path("/run/sshd").mkdir(exist_ok=True)
        config = self._folder / f"sshd_{name}"
        text = CONFIG.format(address=ADDRESSES[name], folder=self._folder, home=f'"{self.home(name)}"')
        config.write_text(text)
        log = self._folder / f"sshd_{name}.txt"
        with log.open("ab") as file:
            self._daemons[name] = subprocess.Popen(
                ["ip", "netns", "exec", self.netns(name), SSHD, "-D", "-e", "-f", str(config)], stderr=file
            )
        self._wait_for_sshd(name)

    def stop_sshd(self, name):
        """The daemon and all of its sessions."""
        for pid in self.processes(name):
            with contextlib.suppress(OSError):
                if (Path("/proc") / str(pid) / "comm").read_text().startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)
        self._daemons.pop(name).wait()

    def mend(self):
        """Every link up, every sshd there, nobody at the desk."""
        for name in ("a", "b"):
            self.set_link(name, is_up=True)
            if name not in self._daemons:
                self.start_sshd(name)
        self._kill("desk")

    def processes(self, name):
        listing = subprocess.run(["ip", "netns", "pids", self.netns(name)], capture_output=True, text=True, check=True)
        return [int(pid) for pid in listing.stdout.split()]

    def close(self):
        for name in ADDRESSES:
            self._kill(name)
        for daemon in self._daemons.values():
            daemon.wait()
        for name in ADDRESSES:
            self._ip("netns", "delete", self.netns(name))

    def _kill(self, name):
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _wait_for_sshd(self, name):
        probe = f"exec 3<>/dev/tcp/{ADDRESSES[name]}/22"
        deadline = time.monotonic() + 60
        while subprocess.run(self.command("bash", "-c", probe), capture_output=True).returncode != 0:
            assert time.monotonic() < deadline, (self._folder / f"sshd_{name}.txt").read_text()
            time.sleep(0.05)

    def _ip(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
