"""Describes the OpenAI API for `/openapi.json`: bodies by the types that decode them, answers by hand."""

from __future__ import annotations

from eyas.gateway.http.operations import GENERATION, ApiOperation, Schema, list_of, object_of
from eyas.gateway.openai.chat.routes import ChatBody
from eyas.gateway.openai.completions.routes import CompletionsBody
from eyas.gateway.openai.completions.tokenize import DetokenizeBody, TokenizeBody
from eyas.gateway.openai.responses.body import ResponsesBody

__all__ = ["OPERATIONS"]

USAGE: Schema = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        name: {"type": "integer", "minimum": 0} for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    },
}
MODEL = object_of("model", "id", "created", "owned_by", id={"type": "string"}, created={"type": "integer"})
CHAT = object_of(
    "chat.completion",
    *("id", "created", "model", "choices", "usage"),
    id={"type": "string"},
    choices={"type": "array", "minItems": 1, "items": {"type": "object", "required": ["index", "finish_reason"]}},
    usage=USAGE,
)

TEXT = object_of(
    "text_completion",
    *("id", "created", "model", "choices", "usage"),
    choices={"type": "array", "items": {"type": "object", "required": ["index", "text", "finish_reason"]}},
    usage=USAGE,
)
RESPONSE = object_of(
    "response",
    *("id", "created_at", "status", "model", "output"),
    id={"type": "string"},
    status={"enum": ["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]},
    output=list_of({"type": "object", "required": ["type"]}),
)
TOKENS: Schema = {
    "type": "object",
    "required": ["count", "max_model_len", "tokens"],
    "properties": {"count": {"type": "integer"}, "tokens": list_of({"type": "integer"})},
}
PAGING: tuple[tuple[str, Schema], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
    ("order", {"enum": ["asc", "desc"]}),
    ("after", {"type": "string"}),
)
ONE_RESPONSE = "/v1/responses/{response_id}"

OPERATIONS = (
    ApiOperation(
        method="post", path="/v1/chat/completions", summary="Answer a conversation", body=ChatBody, answer=CHAT,
        streams=True, errors=GENERATION,
    ),
    ApiOperation(
        method="post", path="/v1/completions", summary="Continue text or tokens", body=CompletionsBody, answer=TEXT,
        streams=True, errors=GENERATION,
    ),
    ApiOperation(
        method="post", path="/v1/responses", summary="Answer items with items", body=ResponsesBody, answer=RESPONSE,
        streams=True, errors=GENERATION,
    ),
    ApiOperation(
        method="get", path=ONE_RESPONSE, summary="A stored response", answer=RESPONSE, parameter="response_id",
        errors=(400, 404),
    ),
    ApiOperation(
        method="delete", path=ONE_RESPONSE, summary="Forget a stored response", parameter="response_id",
        answer=object_of("response", "id", "deleted"), errors=(400, 404),
    ),
    ApiOperation(
        method="post", path=f"{ONE_RESPONSE}/cancel", summary="Stop a response that is being streamed", answer=RESPONSE,
        parameter="response_id", errors=(400, 404),
    ),
    ApiOperation(
        method="get", path=f"{ONE_RESPONSE}/input_items", summary="What a stored response was asked",
        answer=object_of("list", "data"), parameter="response_id", errors=(400, 404), query=PAGING,
    ),
    ApiOperation(
        method="post", path="/tokenize", summary="Tokens of a text or a conversation", body=TokenizeBody, answer=TOKENS,
        errors=(400, 404),
    ),
    ApiOperation(
        method="post", path="/detokenize", summary="Text of tokens", body=DetokenizeBody, errors=(400, 404),
        answer={"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
    ),
    ApiOperation(
        method="get", path="/v1/models", summary="The model that this server has",
        answer=object_of("list", "data", data=list_of(MODEL)),
    ),
    ApiOperation(
        method="get", path="/v1/models/{name}", summary="One model", answer=MODEL, parameter="name", errors=(404,)
    ),
)  # fmt: skip
