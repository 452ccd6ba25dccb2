"""`/health` and `/ready`: whether the process is alive, and whether the engine serves."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from eyas.gateway.http.body import json_response
from eyas.gateway.server.context import Context

__all__ = ["routes"]


def routes(context: Context) -> list[BaseRoute]:
    async def health(request: HttpRequest) -> Response:
        """Answer that the process is alive; the engine is not checked."""
        return json_response({"status": "ok"})

    async def ready(request: HttpRequest) -> Response:
        """Answer whether the engine serves; it was loaded and warm before the app was made."""
        info, failure = context.info, context.engine.failure
        if failure is not None:
            return json_response({"status": "failed", "error": failure}, status=503)
        facts = {"model": info.name, "drafter": info.drafter, "context": info.context, "simulated": info.simulated}
        return json_response({"status": "ready", **facts})

    return [Route("/health", health), Route("/ready", ready)]
