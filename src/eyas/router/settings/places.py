"""Compares places of servers: whether two addresses mean the same one, and whether one is that of the router itself."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from urllib.parse import urlsplit

__all__ = ["EVERYWHERE", "LOOPBACK", "is_place_of", "place_of"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::", "*")
PORTS = {"http": 80, "https": 443}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def place_of(url: str) -> tuple[str, int]:
    """Return host and port of a URL; one address of this machine stands for all of its loopback addresses."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    addresses = list(_literal(host))
    if any(address.is_loopback or address.is_unspecified for address in addresses) or _is_localhost(host):
        host = LOOPBACK[0]
    elif addresses:
        host = addresses[0].compressed
    return host, parts.port or PORTS.get(parts.scheme, 0)


def is_place_of(url: str, host: str, port: int) -> bool:
    """Whether a server that listens on `host` and `port` of this machine is what `url` reaches.

    A name is looked up, but only where the ports are the same.
    """
    place, its_port = place_of(url)
    if its_port != port or not port:
        return False
    theirs = set(_addresses(place))
    if host in EVERYWHERE:
        return any(address.is_loopback or _is_of_this_machine(address) for address in theirs)
    ours = set(_addresses(host))
    return bool(ours & theirs) or (
        any(address.is_loopback for address in ours) and any(address.is_loopback for address in theirs)
    )


def _addresses(host: str) -> Iterator[Address]:
    found = list(_literal(host))
    if _is_localhost(host):
        found = [ipaddress.ip_address(LOOPBACK[0])]
    if found:
        yield from found
        return
    with suppress(OSError, UnicodeError):
        for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            yield _plain(ipaddress.ip_address(str(address[0]).partition("%")[0]))


def _literal(host: str) -> Iterator[Address]:
    """Yield the address that `host` is, in any spelling that the resolver of C takes: 127.1, 0x7f000001, 2130706433."""
    try:
        yield _plain(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        with suppress(OSError, UnicodeError):
            yield ipaddress.IPv4Address(socket.inet_aton(host))


def _plain(address: Address) -> Address:
    return (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address


def _is_localhost(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


def _is_of_this_machine(address: Address) -> bool:
    """Whether a socket can be bound to an address, which needs no port and sends nothing."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as one:
            one.bind((address.compressed, 0))
    except OSError:
        return False
    return True
