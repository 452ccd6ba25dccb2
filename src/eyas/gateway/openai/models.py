"""`/v1/models`: the one model of a server."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from eyas.gateway.http.body import json_response
from eyas.gateway.question.model import check_model
from eyas.gateway.server.context import Context

__all__ = ["routes"]


def routes(context: Context) -> list[BaseRoute]:
    async def models(request: HttpRequest) -> Response:
        return json_response({"object": "list", "data": [_entry(context)]})

    async def model(request: HttpRequest) -> Response:
        check_model(context, request.path_params["name"])
        return json_response(_entry(context))

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]


def _entry(context: Context) -> dict[str, object]:
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
