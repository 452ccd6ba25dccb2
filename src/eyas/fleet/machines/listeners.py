"""TCP listeners of a machine, and whether one keeps a server from an address and port. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["LISTENERS", "Listener", "holder", "kernel_addresses", "read_listeners"]

LISTENERS = "section listeners; ss -Hltnp 2>/dev/null || cat /proc/net/tcp /proc/net/tcp6\n"
ALL_4, ALL_6 = ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::")
MAPPED = "0{16}F{4}0{4}"  # an IPv4 address of an IPv6 socket, as the kernel prints it

Address = ipaddress.IPv4Address | ipaddress.IPv6Address | None  # None: a name, it may be any


class Listener(NamedTuple):
    """A TCP socket that listens; `who` names its process where that is known."""

    address: Address
    port: int
    who: str = ""


def read_listeners(text: str) -> tuple[Listener, ...]:
    """Read listening sockets from the output of `ss -Hltnp` or the kernel's tables."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        if fields[:1] == ["LISTEN"]:
            address, _, port = fields[3].rpartition(":")
            who = re.search(r'\(\("([^"]+)",pid=(\d+)', line)
            found.append(Listener(_address(address), int(port), f"{who[1]} (pid {who[2]})" if who else ""))
        elif len(fields) > 3 and fields[3] == "0A":
            digits, _, port = fields[1].rpartition(":")
            found.append(Listener(_from_kernel(digits), int(port, 16)))
    return tuple(found)


def holder(listeners: Iterable[Listener], port: int, listen: str = "") -> Listener | None:
    """Return the listener that keeps a server from `port` of the address `listen` (a name or none: every address)."""
    wanted = _address(listen)
    clashing = [one for one in listeners if one.port == port and _clash(one.address, wanted)]
    return max(clashing, key=lambda one: bool(one.who), default=None)


def kernel_addresses(listen: str) -> str:
    """Return an extended regular expression for the local addresses in /proc/net/tcp{,6} that clash with `listen`."""
    wanted = _address(listen)
    if wanted is None or wanted == ALL_6:
        return "[0-9A-F]*"
    digits = "[0-9A-F]{8}" if wanted == ALL_4 else _to_kernel(wanted)
    ipv4 = f"|{MAPPED}{digits}|0{{8}}" if wanted.version == 4 else ""
    return f"({digits}{ipv4}|0{{32}})"


def _clash(bound: Address, wanted: Address) -> bool:
    """Whether two addresses clash: a socket of all IPv6 addresses has all IPv4 ones too, unless it opted out."""
    if bound is None or wanted is None or ALL_6 in (bound, wanted):
        return True
    return bound == wanted or (ALL_4 in (bound, wanted) and bound.version == wanted.version)


def _address(text: str) -> Address:
    text = text.strip("[]").partition("%")[0]
    if text in ("*", "localhost"):
        text = {"*": "::", "localhost": "127.0.0.1"}[text]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address


def _to_kernel(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Spell an address as the kernel does: 32-bit words in the machine's order, little-endian wherever engines run."""
    packed = address.packed
    return "".join(packed[place : place + 4][::-1].hex().upper() for place in range(0, len(packed), 4))


def _from_kernel(digits: str) -> Address:
    packed = bytes.fromhex(digits)
    words = b"".join(packed[place : place + 4][::-1] for place in range(0, len(packed), 4))
    return _address(str(ipaddress.ip_address(words)))
