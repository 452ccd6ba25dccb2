"""Refuses requests for other host names, and pages of other origins. Pure ASGI.

With DNS rebinding a page makes its own name resolve to this machine: for the browser the server is then of the page's
origin, and the page may read everything. The Host header, which holds the page's name, reveals this. A page that stays
at another origin cannot read answers, but could still request them and occupy a live view; a browser marks its requests
with Origin or Sec-Fetch-Site (https://www.w3.org/TR/fetch-metadata/), which no script can set.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from eyas.gateway.http.errors import Failure
from eyas.gateway.operation.head import host_and_port
from eyas.gateway.operation.limits import send_failure
from eyas.gateway.server.hosts import ANY, LOCALHOST, Hosts

__all__ = ["HostGuard"]

OWN_SITES = ("same-origin", "none")  # values of Sec-Fetch-Site; none: the user typed the address
DEFAULT_PORTS = ("", "80", "443")
READ = frozenset({b"host", b"origin", b"sec-fetch-site", b"sec-fetch-dest"})


class HostGuard:
    """Answers 403 to requests for a host that is not in `hosts`, and to pages neither of this server nor of `origins`.

    A request without Host is HTTP/1.0, which no browser sends.
    """

    def __init__(self, app: ASGIApp, *, hosts: Hosts, origins: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        # The first of each name. Starlette's Headers would be searched four times, which takes 10 us of every request.
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"]) if name in READ}
        host = host_and_port(headers.get(b"host", LOCALHOST))
        if host is None or not self._hosts.include(host[0]):
            name = "NAME" if host is None else host[0]
            message = (
                f"the host '{name}' is not accepted here; allowed_hosts names those that are: "
                f"eyas serve --allowed-hosts {name}, EYAS_ALLOWED_HOSTS={name}, or under server in a router's file"
            )
            return await _refuse(scope, send, message, "host_not_allowed")
        if not self._may_ask(headers, host):
            origin = headers.get(b"origin", "another site")
            message = f"pages of {origin} may not call this server; cors (--cors) names the origins of those that may"
            return await _refuse(scope, send, message, "origin_not_allowed")
        await self._app(scope, receive, send)

    def _may_ask(self, headers: Mapping[bytes, str], host: tuple[str, str]) -> bool:
        """Whether the request comes from no page, or from an allowed one; in the order of https://words.filippo.io/csrf/."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if ANY in self._origins or origin in self._origins or site in OWN_SITES:
            return True
        if site is not None:  # a link to this server: the page with the link cannot see the answer
            return origin is None and headers.get(b"sec-fetch-dest") == "document"
        return origin is None or _is_at(origin, host)


def _is_at(origin: str, host: tuple[str, str]) -> bool:
    """Whether `origin` has `host` and its port. Schemes are not compared: a proxy may have terminated TLS."""
    found = host_and_port(origin.partition("://")[2])
    if found is None or found[0] != host[0]:
        return False
    return found[1] == host[1] or (found[1] in DEFAULT_PORTS and host[1] in DEFAULT_PORTS)


async def _refuse(scope: Scope, send: Send, message: str, code: str) -> None:
    await send_failure(scope, send, Failure(status=403, message=message, code=code))
