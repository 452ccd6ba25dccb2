"""Which host names this server accepts, and pages of which origins. Pure ASGI.

With DNS rebinding a page makes its own name resolve to this machine: for the browser the server is then of the page's
origin, and the page may read everything. What gives it away is the Host header, which holds the page's name. A page
that stays at another origin cannot read answers, but could still ask for them and take a live view's place; a browser
marks its requests with Origin or Sec-Fetch-Site (https://www.w3.org/TR/fetch-metadata/), which no script can set.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eyas.base.errors import UserError
from eyas.gateway.errors import envelope
from eyas.gateway.operation.auth import is_loopback
from eyas.gateway.operation.head import host_and_port
from eyas.gateway.operation.limits import send_json

__all__ = ["HostGuard", "Hosts", "allowed_hosts", "hosts_of"]

ANY = "*"
LOCALHOST = "localhost"
NAME = re.compile(r"((?:\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)\.?")
OWN_SITES = ("same-origin", "none")  # of Sec-Fetch-Site; none: a person typed the address
DEFAULT_PORTS = ("", "80", "443")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """Accepted host names in lower case: `*.NAME` is every name below NAME, `*` every name. Loopback names always are.

    `any_address` accepts all IP addresses: there is no DNS in them that could be rebound.
    """

    names: tuple[str, ...] = ()
    any_address: bool = False

    def include(self, host: str) -> bool:
        """Whether `host`, in lower case and without port and brackets, is accepted."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            # Names below localhost are reserved (RFC 6761, 6.3), and browsers do not ask DNS for them.
            if host == LOCALHOST or host.endswith(f".{LOCALHOST}"):
                return True
        else:
            host = address.compressed
            if self.any_address or (getattr(address, "ipv4_mapped", None) or address).is_loopback:
                return True
        return any(name in (host, ANY) or (name[:2] == "*." and host.endswith(name[1:])) for name in self.names)


def allowed_hosts(text: str | None) -> tuple[str, ...]:
    """Comma-separated host names and addresses without ports, `*.NAME`, or `*`. Raises UserError."""
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
        f"allowed_hosts wants names without a port, such as box.example or *.example, or '*', got '{entry}'"
    )


def hosts_of(address: str, allowed: str | None, *, has_keys: bool) -> Hosts:
    """What a server that listens on `address` accepts, besides `allowed` as `allowed_hosts` reads it. Raises UserError.

    On a loopback address: loopback names. On others without keys: IP addresses and this machine's own names too. With
    keys any name: a page does not have the key, and clients use names that only a proxy or a cluster knows.
    """
    also = allowed_hosts(allowed)
    if is_loopback(address):
        return Hosts(names=also)
    if has_keys:
        return Hosts(names=(ANY,))
    return Hosts(names=(*also, *_own_names(address)), any_address=True)


def _own_names(address: str) -> Iterable[str]:
    """The host name, with its domain and in mDNS, and the name that was given as the address to listen on."""
    name = socket.gethostname().lower()
    return {name, socket.getfqdn(name).lower(), f"{name.partition('.')[0]}.local", address.lower()} - {""}


class HostGuard:
    """Answers 403 to requests for a host that is not in `hosts`, and to pages neither of this server nor of `origins`.

    A request without Host is one of HTTP/1.0, which no browser sends.
    """

    def __init__(self, app: ASGIApp, *, hosts: Hosts, origins: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        host = host_and_port(headers.get("host", LOCALHOST))
        if host is None or not self._hosts.include(host[0]):
            name = "NAME" if host is None else host[0]
            message = (
                f"the host '{name}' is not accepted here; to accept it, start the server with --allowed-hosts {name}"
            )
            return await _refuse(send, f"{message} or EYAS_ALLOWED_HOSTS={name}", "host_not_allowed")
        if not self._may_ask(headers, host):
            origin = headers.get("origin", "another site")
            message = f"pages of {origin} may not call this server; --cors names the origins of those that may"
            return await _refuse(send, message, "origin_not_allowed")
        await self._app(scope, receive, send)

    def _may_ask(self, headers: Headers, host: tuple[str, str]) -> bool:
        """Whether this is no page's request or that of an allowed one; in the order of https://words.filippo.io/csrf/."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if ANY in self._origins or origin in self._origins or site in OWN_SITES:
            return True
        if site is not None:  # a link to this server: the page that has it sees nothing of the answer
            return origin is None and headers.get("sec-fetch-dest") == "document"
        return origin is None or _is_at(origin, host)


def _is_at(origin: str, host: tuple[str, str]) -> bool:
    """Whether `origin` has `host` and its port. Schemes are not compared: a proxy may have terminated TLS."""
    found = host_and_port(origin.partition("://")[2])
    if found is None or found[0] != host[0]:
        return False
    return found[1] == host[1] or (found[1] in DEFAULT_PORTS and host[1] in DEFAULT_PORTS)


async def _refuse(send: Send, message: str, code: str) -> None:
    await send_json(send, 403, envelope(message, "invalid_request_error", code=code))
