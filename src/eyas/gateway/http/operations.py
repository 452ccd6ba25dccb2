"""Describes routes for `/openapi.json`: one record per operation, written next to its route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

__all__ = ["EVENTS", "GENERATION", "JSON", "ApiOperation", "Schema", "list_of", "object_of"]

JSON = "application/json"
EVENTS = "text/event-stream"
GENERATION = (400, 404, 429, 500)  # statuses of operations that use the engine

Schema: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiOperation:
    """One operation of the API. `answer` is the schema of the JSON answer; None if the answer is text.

    `errors` are statuses in addition to those that every operation may answer.
    """

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


def object_of(kind: str, *required: str, **properties: Schema) -> Schema:
    """Return the schema of an answer whose `object` is `kind`."""
    return {
        "type": "object",
        "required": ["object", *required],
        "properties": {"object": {"const": kind}} | properties,
    }


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}
