"""The two ways into a sandbox, where they work on this machine, and what there is to be found outside of it."""

import asyncio
import os
import socket
import subprocess
import sys

import pytest
from tests.sandbox.support.outside import SECRET, marker

from eyas.base.errors import UserError
from eyas.sandbox.sandbox import Sandbox
from eyas.sandbox.seccomp import CLONE
from eyas.sandbox.ways import NAMESPACES, find_bubblewrap, with_bubblewrap, with_namespaces


@pytest.fixture(scope="session")
def ways():
    """Returns a way by its name; skips the test, and says what is missing, where the machine has it not."""
    found = {}

    def find(name):
        if name not in found:
            found[name] = way_of(name)
        way, missing = found[name]
        if missing:
            pytest.skip(missing)
        return way

    return find


def way_of(name):
    way = with_namespaces
    if name != NAMESPACES:
        program = find_bubblewrap()
        if program is None:
            return None, "bubblewrap 0.7 or newer is not installed"
        way = with_bubblewrap(program)
    try:
        asyncio.run(Sandbox(way, name).run("print(1)"))
    except UserError as error:
        return None, str(error)
    return way, None


@pytest.fixture(scope="session")
def outside(tmp_path_factory):
    """A file, a process to kill, and listeners: words of the programs in `escapes.py`."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text(SECRET)
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        local.bind(str(folder / "socket"))
        abstract.bind(f"\0{marker()}")
        local.listen()
        abstract.listen()
        yield {
            "secret": str(folder / "secret"),
            "socket": str(folder / "socket"),
            "abstract": marker(),
            "port": tcp.getsockname()[1],
            "pid": victim.pid,
            "trace": f"/tmp/{marker()}",
            "clone": CLONE[0 if os.uname().machine == "x86_64" else 1],
        }
        assert victim.poll() is None, "a program has killed it"
        victim.communicate()
