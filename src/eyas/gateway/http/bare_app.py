"""The bare Starlette app of a server: routes, how errors are answered, and no redirects."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import Lifespan

from eyas.base.errors import EyasError
from eyas.gateway.http.errors import on_client_left, on_eyas_error, on_http_exception, on_unexpected
from eyas.gateway.http.stream import ClientGone

__all__ = ["bare_app"]


def bare_app(routes: Sequence[BaseRoute], lifespan: Lifespan[Starlette]) -> Starlette:
    """Return an app of `routes`; errors are answered in the format of the path."""
    app = Starlette(
        routes=routes,
        exception_handlers={
            ClientDisconnect: on_client_left,
            ClientGone: on_client_left,
            EyasError: on_eyas_error,
            HTTPException: on_http_exception,
            Exception: on_unexpected,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would trust the Host header, and lose https after a proxy
    return app
