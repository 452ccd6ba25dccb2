"""The host names that a server accepts, as protection from DNS rebinding (see `gateway/operation/host_guard.py`)."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from eyas.base.errors import UserError

__all__ = ["ANY", "LOCALHOST", "Hosts", "allowed_hosts", "hosts_of", "is_loopback"]

ANY = "*"
LOCALHOST = "localhost"
NAME = re.compile(r"((?:\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)\.?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """Accepted host names in lower case: `*.NAME` is every name below NAME, `*` every name; loopback names always are.

    `any_address` accepts all IP addresses: they involve no DNS that could be rebound.
    """

    names: tuple[str, ...] = ()
    any_address: bool = False

    def include(self, host: str) -> bool:
        """Whether `host`, in lower case and without port and brackets, is accepted."""
        address = _address_of(host)
        if address is None:
            # Names below localhost are reserved (RFC 6761, 6.3), and browsers do not ask DNS for them.
            if host == LOCALHOST or host.endswith(f".{LOCALHOST}"):
                return True
        else:
            host = address.compressed
            if self.any_address or (getattr(address, "ipv4_mapped", None) or address).is_loopback:
                return True
        return any(name in (host, ANY) or (name[:2] == "*." and host.endswith(name[1:])) for name in self.names)


@lru_cache(maxsize=64)
def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is; None if it is a name. Clients repeat themselves, and parsing takes 10 us."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def allowed_hosts(text: str | None) -> tuple[str, ...]:
    """Parse comma-separated host names and addresses without ports, `*.NAME`, or `*`. Raises UserError."""
    return tuple(_name(entry.strip().lower()) for entry in text.split(",")) if text else ()


def _name(entry: str) -> str:
    if entry == ANY:
        return entry
    try:
        return ipaddress.ip_address(entry.strip("[]")).compressed
    except ValueError:
        if (match := NAME.fullmatch(entry)) is not None:
            return match[1]
    raise UserError(
        f"allowed_hosts takes names without a port, such as box.example or *.example, or '*', got '{entry}'"
    )


def hosts_of(address: str, allowed: str | None, *, has_keys: bool) -> Hosts:
    """Return the hosts that a server on `address` accepts; `allowed` adds some (see `allowed_hosts`). Raises UserError.

    On a loopback address: loopback names. On others without keys: IP addresses and this machine's own names too. With
    keys any name: a page does not have the key, and clients use names that only a proxy or a cluster knows.
    """
    also = allowed_hosts(allowed)
    if is_loopback(address):
        return Hosts(names=also)
    if has_keys:
        return Hosts(names=(ANY,))
    return Hosts(names=(*also, *_own_names(address)), any_address=True)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _own_names(address: str) -> Iterable[str]:
    """Return the host name, with its domain and in mDNS, and the name that was given as the address to listen on."""
    name = socket.gethostname().lower()
    return {name, socket.getfqdn(name).lower(), f"{name.partition('.')[0]}.local", address.lower()} - {""}
