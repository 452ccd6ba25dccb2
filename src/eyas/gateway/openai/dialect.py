"""The OpenAI dialect of this server: chat, completions, Responses, and vLLM's tokenizer routes."""

from __future__ import annotations

from starlette.routing import BaseRoute

from eyas.gateway.openai import models
from eyas.gateway.openai.chat import routes as chat
from eyas.gateway.openai.completions import routes as completions
from eyas.gateway.openai.completions import tokenize
from eyas.gateway.openai.errors import ERROR_SCHEMA, ERRORS
from eyas.gateway.openai.operations import OPERATIONS
from eyas.gateway.openai.responses import routes as responses
from eyas.gateway.server.context import Context
from eyas.gateway.server.dialect import Dialect

__all__ = ["OPENAI"]

PARTS = (models, chat, completions, tokenize, responses)


def _routes(context: Context) -> list[BaseRoute]:
    return [route for part in PARTS for route in part.routes(context)]


OPENAI = Dialect(
    name="openai",
    paths=("/v1", "/tokenize", "/detokenize"),
    routes=_routes,
    errors=ERRORS,
    error_schema=ERROR_SCHEMA,
    operations=OPERATIONS,
)
