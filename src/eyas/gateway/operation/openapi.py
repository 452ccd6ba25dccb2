"""The OpenAPI 3.1 description at `/openapi.json`: the dialects' descriptions of their routes, and the server's own.

Status codes of operations are complete; answers are described by the fields that clients rely on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

import eyas
from eyas.gateway.http.operations import EVENTS, JSON, ApiOperation, Schema
from eyas.gateway.server.context import Context
from eyas.gateway.server.dialect import Dialect, Dialects

__all__ = ["document", "operations"]

# An event of a stream, as OpenAPI 3.2 describes it; readers of 3.1 accept it too. `data` is JSON, or [DONE].
EVENT: Schema = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string"}, "event": {"type": "string"}},
}
READY: Schema = {"type": "object", "required": ["status"], "properties": {"status": {"enum": ["ready", "failed"]}}}
ERRORS = {
    400: "the request is invalid; `param` names the field",
    401: "the API key is missing or not known",
    404: "not found",
    408: "the request was not complete in time",
    413: "the body is larger than this server accepts",
    415: "the body is not declared as JSON",
    429: "the queue is full; Retry-After says when to try again",
    431: "too many or too long headers",
    500: "the engine failed",
    503: "the engine is not serving, or there are too many connections; Retry-After says when to try again",
}
ALWAYS = (401, 408, 413, 431, 503)  # statuses of every operation; those with a body also answer 400 and 415

OWN_OPERATIONS = (
    ApiOperation(
        method="get", path="/health", summary="The process is alive", is_open=True,
        answer={"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}},
    ),
    ApiOperation(
        method="get", path="/ready", summary="Whether the engine serves", answer=READY, statuses=(200, 503),
        is_open=True,
    ),
    ApiOperation(method="get", path="/metrics", summary="Counters for Prometheus", media_type="text/plain"),
    ApiOperation(
        method="get", path="/version", summary="The version of eyas and the commit that it was built from",
        answer={
            "type": "object", "required": ["version", "commit"],
            "properties": {"version": {"type": "string"}, "commit": {"type": ["string", "null"]}},
        },
    ),
    ApiOperation(method="get", path="/openapi.json", summary="This description", answer={"type": "object"}),
    ApiOperation(
        method="get", path="/live", summary="The engine's steps, as a stream", media_type=EVENTS, errors=(404, 429)
    ),
    ApiOperation(
        method="get", path="/live/trace/{step}", summary="A step of --trace, as its line", parameter="step",
        answer={"type": "object", "required": ["step", "slots"]}, errors=(404,),
    ),
    ApiOperation(method="get", path="/", summary="The page", media_type="text/html", is_open=True),
    ApiOperation(
        method="get", path="/page/{file}", summary="Files of the page", media_type="*/*", parameter="file",
        errors=(404,), is_open=True,
    ),
)  # fmt: skip


def operations(dialects: Dialects) -> Iterator[tuple[ApiOperation, Dialect]]:
    """Return each operation of a server, with the dialect of its errors."""
    for dialect in dialects.all:
        yield from ((one, dialect) for one in dialect.operations)
    yield from ((one, dialects.of(one.path)) for one in OWN_OPERATIONS)


def document(context: Context, dialects: Dialects) -> bytes:
    """Return the description of one server as JSON."""
    described = list(operations(dialects))
    bodies = list(dict.fromkeys(one.body for one, _ in described if one.body is not None))
    references, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    _anchor(components)
    reference_of = dict(zip(bodies, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one, dialect in described:
        body = None if one.body is None else reference_of[one.body]
        error = {"$ref": f"#/components/schemas/{_error_name(dialect, dialects)}"}
        paths.setdefault(one.path, {})[one.method] = _describe(one, body, error, dialect.errors.statuses)
    errors = {_error_name(dialect, dialects): dialect.error_schema for dialect in dialects.all}
    security: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}] if context.options.key_digests else []
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "eyas", "version": eyas.__version__, "license": {"name": "Apache-2.0"}},
            "paths": paths,
            "security": security,
            "components": {
                "schemas": components | errors,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }
    )


def _error_name(dialect: Dialect, dialects: Dialects) -> str:
    """Return the name of the schema of a dialect's errors."""
    return "Error" if dialect is dialects.all[0] else f"{dialect.name}.Error"


def _anchor(schema: Any) -> None:
    """Rewrite patterns in place for JSON Schema's regular expressions, which lack \\A and \\Z."""
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _anchor(value)
    if isinstance(schema, dict) and isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")


def _describe(operation: ApiOperation, body: Schema | None, error: Schema, statuses: Mapping[int, int]) -> Schema:
    """Describe one operation; `body` and `error` are references to schemas, `statuses` the dialect's own."""
    fallback = EVENT if operation.media_type == EVENTS else {"type": "string"}
    content: Schema = {operation.media_type: {"schema": operation.answer or fallback}}
    if operation.streams:
        content[EVENTS] = {"schema": EVENT}
    answers: Schema = {str(status): {"description": "done", "content": content} for status in operation.statuses}
    errors = (*operation.errors, *((400, 415) if operation.body else ()))
    for status in sorted({*ALWAYS, *errors}):
        shown = str(statuses.get(status, status))
        answers.setdefault(shown, {"description": ERRORS[status], "content": {JSON: {"schema": error}}})
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
    if body is not None:
        out["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return out
