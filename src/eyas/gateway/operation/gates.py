"""Gates before every route of a server: keys, origins, hosts and limits. Independent of the engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import eyas
from eyas.base.commit import commit
from eyas.gateway.http.body import json_response
from eyas.gateway.http.errors import Failure
from eyas.gateway.operation.auth import Auth
from eyas.gateway.operation.connections import ON_REFUSED, REFUSAL
from eyas.gateway.operation.host_guard import HostGuard
from eyas.gateway.operation.limits import Limits
from eyas.gateway.server.dialect import REQUEST_ID_HEADER, Dialects
from eyas.gateway.server.hosts import Hosts

__all__ = ["Access", "behind_gates", "refusal_state", "version_route"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Limits of who may ask, and how much. `exposed` are headers of answers that pages of `cors_origins` may read."""

    key_digests: tuple[bytes, ...] = ()
    hosts: Hosts = field(default_factory=Hosts)
    cors_origins: tuple[str, ...] = ()
    max_body: int = 16 << 20
    exposed: tuple[str, ...] = (REQUEST_ID_HEADER,)


def behind_gates(app: ASGIApp, access: Access, *, dialects: Dialects, on_status: Callable[[int], None]) -> ASGIApp:
    """Wrap `app` in keys, origins, hosts and limits; requests that these refuse have ids and are counted, too."""
    app = Auth(app, key_digests=access.key_digests)
    if access.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=access.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=access.exposed,
        )
    app = HostGuard(app, hosts=access.hosts, origins=access.cors_origins)
    return Limits(app, dialects=dialects, max_body=access.max_body, on_status=on_status)


def refusal_state(dialects: Dialects, on_status: Callable[[int], None]) -> dict[str, Any]:
    """Return the lifespan state by which connections answer and count what they refuse before it has an id."""

    def refusal(path: str, failure: Failure) -> tuple[int, Mapping[str, str], bytes]:
        dialect = dialects.of(path)
        request_id = uuid.uuid4().hex
        status, headers = dialect.errors.head(failure)
        ids = dict.fromkeys((REQUEST_ID_HEADER, dialect.id_header), request_id)
        return status, {**headers, **ids}, dialect.errors.body(replace(failure, request_id=request_id))

    return {ON_REFUSED: on_status, REFUSAL: refusal}


def version_route() -> Route:
    """Return the route `/version`."""
    names = {"version": eyas.__version__, "commit": commit()}

    async def version(request: Request) -> Response:
        return json_response(names)

    return Route("/version", version)
