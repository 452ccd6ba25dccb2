"""`/v1/models`: the one model of a server, in a form that OpenAI's and Anthropic's clients read.

Anthropic's clients offer models with "claude" or "anthropic" in their names only, hence a second entry.
"""

from __future__ import annotations

import datetime

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from eyas.base.errors import InvalidRequest
from eyas.gateway.http.body import json_response
from eyas.gateway.question.model import check_model, names_of
from eyas.gateway.server.context import Context

__all__ = ["MAX_LIMIT", "routes"]

MAX_LIMIT = 1000  # Anthropic's


def routes(context: Context) -> list[BaseRoute]:
    async def models(request: HttpRequest) -> Response:
        return json_response(_page(context, request))

    async def model(request: HttpRequest) -> Response:
        check_model(context, request.path_params["name"])
        return json_response(_entry(context, request.path_params["name"]))

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]


def _page(context: Context, request: HttpRequest) -> dict[str, object]:
    """Return the models of one page: `limit` of them, after or before a name. Raises InvalidRequest."""
    query, names = request.query_params, list(names_of(context.info.name))
    asked = query.get("limit", str(MAX_LIMIT))
    if not (asked.isascii() and asked.isdigit() and 1 <= int(asked[:9]) <= MAX_LIMIT):
        raise InvalidRequest(f"'limit' is a number from 1 to {MAX_LIMIT}", param="limit")
    limit = int(asked[:9])
    before = "before_id" in query and query["before_id"] in names
    if before:
        names = names[: names.index(query["before_id"])]
    elif query.get("after_id") in names:
        names = names[names.index(query["after_id"]) + 1 :]
    shown = names[-limit:] if before else names[:limit]
    return {
        "object": "list",
        "data": [_entry(context, name) for name in shown],
        "has_more": len(shown) < len(names),
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def _entry(context: Context, name: str) -> dict[str, object]:
    info = context.info
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "eyas",
        "root": info.name,
        "parent": None,
        "max_model_len": info.context,
        "type": "model",
        "display_name": f"{info.name} (SIMULATED)" if info.simulated else info.name,
        "created_at": datetime.datetime.fromtimestamp(context.created, datetime.UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": info.context,
        "max_tokens": info.context,
        **(
            {"simulated": "SIMULATED: random weights, or none; speeds are real, answers and acceptance are not"}
            if info.simulated
            else {}
        ),
    }
