"""The OpenAPI 3.1 description at `/openapi.json`: bodies from the very types that decode them, answers by hand.

What an operation may answer is complete as to status codes; answers are described by the fields that clients rely on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

import eyas
from eyas.gateway.openai.chat.routes import ChatBody
from eyas.gateway.openai.completions.routes import CompletionsBody
from eyas.gateway.openai.completions.tokenize import DetokenizeBody, TokenizeBody
from eyas.gateway.openai.responses.body import ResponsesBody
from eyas.gateway.server.context import Context

__all__ = ["document"]

JSON = "application/json"
EVENTS = "text/event-stream"
Schema = dict[str, Any]

# Each event of a stream, as OpenAPI 3.2 describes streams and readers of 3.1 take it too; `data` is JSON, or [DONE].
EVENT: Schema = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string"}, "event": {"type": "string"}},
}
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
USAGE: Schema = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        name: {"type": "integer", "minimum": 0} for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    },
}
READY: Schema = {"type": "object", "required": ["status"], "properties": {"status": {"enum": ["ready", "failed"]}}}
ERRORS = {
    400: "the request cannot be served as asked; `param` names the field",
    401: "an API key is asked for and was not given, or is not known",
    404: "no such thing here",
    408: "the request was not complete in time",
    413: "the body is larger than this server takes",
    415: "the body is declared to be something else than JSON",
    429: "the queue is full; Retry-After says when to come back",
    431: "too many or too long headers",
    500: "the engine failed",
    503: "the engine is not serving just now, or there are too many connections; Retry-After says when to come back",
}
ALWAYS = (401, 408, 413, 431, 503)  # what every operation may answer; those with a body 400 and 415 too
GENERATION = (400, 404, 429, 500)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Operation:
    """`answer` is the schema of the JSON answer; None where the answer is text. `errors` come beside ALWAYS."""

    method: str
    path: str
    summary: str
    answer: Schema | None = None
    media_type: str = JSON
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    errors: tuple[int, ...] = ()
    parameter: str | None = None
    query: tuple[tuple[str, Schema], ...] = ()
    statuses: tuple[int, ...] = (200,)
    is_open: bool = False


def _object(kind: str, *required: str, **properties: Schema) -> Schema:
    """An answer whose `object` is `kind`."""
    return {
        "type": "object",
        "required": ["object", *required],
        "properties": {"object": {"const": kind}} | properties,
    }


def _list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


MODEL = _object("model", "id", "created", "owned_by", id={"type": "string"}, created={"type": "integer"})
CHAT = _object(
    "chat.completion",
    *("id", "created", "model", "choices", "usage"),
    id={"type": "string"},
    choices={"type": "array", "minItems": 1, "items": {"type": "object", "required": ["index", "finish_reason"]}},
    usage=USAGE,
)

TEXT = _object(
    "text_completion",
    *("id", "created", "model", "choices", "usage"),
    choices={"type": "array", "items": {"type": "object", "required": ["index", "text", "finish_reason"]}},
    usage=USAGE,
)
RESPONSE = _object(
    "response",
    *("id", "created_at", "status", "model", "output"),
    id={"type": "string"},
    status={"enum": ["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]},
    output=_list_of({"type": "object", "required": ["type"]}),
)
TOKENS: Schema = {
    "type": "object",
    "required": ["count", "max_model_len", "tokens"],
    "properties": {"count": {"type": "integer"}, "tokens": _list_of({"type": "integer"})},
}
PAGING: tuple[tuple[str, Schema], ...] = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
    ("order", {"enum": ["asc", "desc"]}),
    ("after", {"type": "string"}),
)
ONE_RESPONSE = "/v1/responses/{response_id}"

OPERATIONS = (
    _Operation(
        method="post", path="/v1/chat/completions", summary="Answer a conversation", body=ChatBody, answer=CHAT,
        streams=True, errors=GENERATION,
    ),
    _Operation(
        method="post", path="/v1/completions", summary="Continue text or tokens", body=CompletionsBody, answer=TEXT,
        streams=True, errors=GENERATION,
    ),
    _Operation(
        method="post", path="/v1/responses", summary="Answer items with items", body=ResponsesBody, answer=RESPONSE,
        streams=True, errors=GENERATION,
    ),
    _Operation(
        method="get", path=ONE_RESPONSE, summary="A stored response", answer=RESPONSE, parameter="response_id",
        errors=(400, 404),
    ),
    _Operation(
        method="delete", path=ONE_RESPONSE, summary="Forget a stored response", parameter="response_id",
        answer=_object("response", "id", "deleted"), errors=(400, 404),
    ),
    _Operation(
        method="post", path=f"{ONE_RESPONSE}/cancel", summary="Stop a response that is being streamed", answer=RESPONSE,
        parameter="response_id", errors=(400, 404),
    ),
    _Operation(
        method="get", path=f"{ONE_RESPONSE}/input_items", summary="What a stored response was asked",
        answer=_object("list", "data"), parameter="response_id", errors=(400, 404), query=PAGING,
    ),
    _Operation(
        method="post", path="/tokenize", summary="Tokens of a text or a conversation", body=TokenizeBody, answer=TOKENS,
        errors=(400, 404),
    ),
    _Operation(
        method="post", path="/detokenize", summary="Text of tokens", body=DetokenizeBody, errors=(400, 404),
        answer={"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
    ),
    _Operation(
        method="get", path="/v1/models", summary="The model that this server has",
        answer=_object("list", "data", data=_list_of(MODEL)),
    ),
    _Operation(
        method="get", path="/v1/models/{name}", summary="One model", answer=MODEL, parameter="name", errors=(404,)
    ),
    _Operation(
        method="get", path="/health", summary="The process is alive", is_open=True,
        answer={"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}},
    ),
    _Operation(
        method="get", path="/ready", summary="Whether the engine serves", answer=READY, statuses=(200, 503),
        is_open=True,
    ),
    _Operation(method="get", path="/metrics", summary="Counters for Prometheus", media_type="text/plain"),
    _Operation(
        method="get", path="/version", summary="The version of eyas and the commit that it was made from",
        answer={
            "type": "object", "required": ["version", "commit"],
            "properties": {"version": {"type": "string"}, "commit": {"type": ["string", "null"]}},
        },
    ),
    _Operation(method="get", path="/openapi.json", summary="This description", answer={"type": "object"}),
    _Operation(
        method="get", path="/live", summary="What the engine does, step by step", media_type=EVENTS, errors=(404, 429)
    ),
    _Operation(method="get", path="/", summary="The page", media_type="text/html", is_open=True),
    _Operation(
        method="get", path="/page/{file}", summary="Parts of the page", media_type="*/*", parameter="file",
        errors=(404,), is_open=True,
    ),
)  # fmt: skip


def document(context: Context) -> bytes:
    """The description of one server as JSON."""
    bodies = [one.body for one in OPERATIONS if one.body is not None]
    _, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    _anchor(components)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation)
    security: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}] if context.options.key_digests else []
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "eyas", "version": eyas.__version__, "license": {"name": "Apache-2.0"}},
            "paths": paths,
            "security": security,
            "components": {
                "schemas": components | {"Error": ERROR},
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }
    )


def _anchor(schema: Any) -> None:
    """Patterns in JSON Schema's dialect, which knows no \\A and \\Z; in place."""
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _anchor(value)
    if isinstance(schema, dict) and isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")


def _describe(operation: _Operation) -> Schema:
    fallback = EVENT if operation.media_type == EVENTS else {"type": "string"}
    content: Schema = {operation.media_type: {"schema": operation.answer or fallback}}
    if operation.streams:
        content[EVENTS] = {"schema": EVENT}
    answers: Schema = {str(status): {"description": "done", "content": content} for status in operation.statuses}
    errors = (*operation.errors, *((400, 415) if operation.body else ()))
    for status in sorted({*ALWAYS, *errors}):
        schema = {"$ref": "#/components/schemas/Error"}
        answers.setdefault(str(status), {"description": ERRORS[status], "content": {JSON: {"schema": schema}}})
    out: Schema = {
        "operationId": f"{operation.method} {operation.path}",
        "summary": operation.summary,
        "responses": answers,
    }
    if operation.is_open:
        out["security"] = []
    parameters: list[Schema] = [
        {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in operation.query
    ]
    if operation.parameter is not None:
        name = {"name": operation.parameter, "in": "path", "required": True, "schema": {"type": "string"}}
        parameters.append(name)
    if parameters:
        out["parameters"] = parameters
    if operation.body is not None:
        schema = {"$ref": f"#/components/schemas/{operation.body.__name__}"}
        out["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return out
