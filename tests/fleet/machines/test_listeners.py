"""Which sockets keep a server from its address: what is read of them, against what the kernel lets one bind."""

import socket
from ipaddress import ip_address

import pytest
from tests.fleet.support.lab import free_port

from eyas.fleet.machines.listeners import LISTENERS, Listener, holder, kernel_addresses, read_listeners
from eyas.fleet.machines.node import LocalNode
from eyas.fleet.machines.sections import ask
from eyas.fleet.running import scripts
from eyas.fleet.running.scripts import Owner

ADDRESSES = ("127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::")


def test_by_name_and_from_the_kernel():
    ss = (
        'LISTEN 0 128 127.0.0.1:8000 0.0.0.0:* users:(("python3",pid=12,fd=6))\nLISTEN 0 9 [::]:22 [::]:*\n'
        "LISTEN 0 9 *:80 *:*\nLISTEN 0 9 127.0.0.53%lo:53 0.0.0.0:*\nLISTEN 0 9 [::ffff:127.0.0.1]:81 *:*"
    )
    assert read_listeners(ss) == (
        Listener(ip_address("127.0.0.1"), 8000, "python3 (pid 12)"),
        Listener(ip_address("::"), 22),
        Listener(ip_address("::"), 80),
        Listener(ip_address("127.0.0.53"), 53),
        Listener(ip_address("127.0.0.1"), 81),
    )
    kernel = (
        "  sl  local_address rem_address   st tx\n   0: 0100007F:1F40 00000000:0000 0A 0\n"
        "   1: 0100007F:1F41 0:0 01 0\n"
        "   2: 0000000000000000FFFF00000100007F:1F42 0:0 0A\n   3: 00000000000000000000000001000000:1F43 0:0 0A"
    )
    assert read_listeners(kernel) == (
        Listener(ip_address("127.0.0.1"), 8000),
        Listener(ip_address("127.0.0.1"), 8002),
        Listener(ip_address("::1"), 8003),
    )


def bind(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, dualstack_ipv6=address == "::")


@pytest.mark.parametrize("bound", ADDRESSES)
def test_what_the_kernel_refuses_is_in_use_and_nothing_else(bound, tmp_path):
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    port = free_port()
    owner = Owner(token="x", directory=str(tmp_path))
    with bind(bound, port):
        found = read_listeners(ask(LocalNode(), LISTENERS, timeout_s=30)["listeners"])
        for wanted in ADDRESSES:
            try:
                bind(wanted, port).close()
                is_free = True
            except OSError:
                is_free = False
            assert (holder(found, port, wanted) is None) == is_free, wanted
            prepared = LocalNode().run(scripts.prepare(owner, [], port, wanted))
            assert (prepared.code == 0) == is_free, (wanted, kernel_addresses(wanted), prepared)
        assert holder(found, port) is not None and holder(found, port, "a-name") is not None
    assert LocalNode().run(scripts.prepare(owner, [], port)).code == 0


def test_a_socket_that_is_known_by_name_is_named():
    here = ip_address("127.0.0.1")
    assert holder([Listener(None, 1), Listener(here, 1, "x (pid 1)"), Listener(here, 2, "y")], 1).who == "x (pid 1)"
