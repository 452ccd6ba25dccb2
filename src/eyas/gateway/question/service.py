"""`/health`, `/ready` and `/v1/models`: what this server is and whether it serves."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from eyas.gateway.http.body import json_response
from eyas.gateway.http.errors import Refused
from eyas.gateway.server.context import Context

__all__ = ["check_model", "routes"]


def routes(context: Context) -> list[BaseRoute]:
    async def health(request: HttpRequest) -> Response:
        """The process is alive; the engine is not asked."""
        return json_response({"status": "ok"})

    async def ready(request: HttpRequest) -> Response:
        """The engine serves; it was loaded and warm before the app was made."""
        info, failure = context.info, context.engine.failure
        if failure is not None:
            return json_response({"status": "failed", "error": failure}, status=503)
        return json_response({"status": "ready", "model": info.name, "drafter": info.drafter, "context": info.context})

    async def models(request: HttpRequest) -> Response:
        return json_response({"object": "list", "data": [model_entry(context)]})

    async def model(request: HttpRequest) -> Response:
        check_model(context, request.path_params["name"])
        return json_response(model_entry(context))

    return [
        Route("/health", health),
        Route("/ready", ready),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
    ]


def check_model(context: Context, name: str | None) -> None:
    """Raises a 404 for the name of another model; None means the only one that is here."""
    if name not in (None, context.info.name):
        message = f"The model '{name}' does not exist; this server has '{context.info.name}'"
        raise Refused(message, param="model", code="model_not_found", status=404)


def model_entry(context: Context) -> dict[str, object]:
    info = context.info
    return {
        "id": info.name,
        "object": "model",
        "created": context.created,
        "owned_by": "eyas",
        "root": info.name,
        "parent": None,
        "max_model_len": info.context,
    }
