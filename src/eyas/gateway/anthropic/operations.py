"""Describes the Anthropic API for `/openapi.json`: bodies by the types that decode them, answers by hand."""

from __future__ import annotations

from eyas.gateway.anthropic.body import CountBody, MessagesBody
from eyas.gateway.anthropic.routes import COUNT_PATH, HELLO_PATH, PATH
from eyas.gateway.http.operations import GENERATION, ApiOperation, Schema, list_of

__all__ = ["OPERATIONS"]

USAGE_FIELDS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
MESSAGE: Schema = {
    "type": "object",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    "properties": {
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "content": list_of({"type": "object", "required": ["type"]}),
        "stop_reason": {
            "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
        },
        "usage": {
            "type": "object",
            "required": list(USAGE_FIELDS),
            "properties": {name: {"type": "integer", "minimum": 0} for name in USAGE_FIELDS},
        },
    },
}

OPERATIONS = (
    ApiOperation(
        method="post", path=PATH, summary="Answer a conversation of the Anthropic API", body=MessagesBody,
        answer=MESSAGE, streams=True, errors=GENERATION,
    ),
    ApiOperation(
        method="post", path=COUNT_PATH, summary="Tokens of such a conversation", body=CountBody, errors=(404, 429),
        answer={"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}},
    ),
    ApiOperation(
        method="get", path=HELLO_PATH, summary="The server is there", is_open=True,
        answer={"type": "object", "required": ["message"]},
    ),
)  # fmt: skip
