"""How routes are described for `/openapi.json`: one record an operation, written where its route is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

__all__ = ["EVENTS", "GENERATION", "JSON", "ApiOperation", "Schema", "list_of", "object_of"]

JSON = "application/json"
EVENTS = "text/event-stream"
GENERATION = (400, 404, 429, 500)  # what operations that ask the engine may answer

Schema: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiOperation:
    """`answer` is the schema of the JSON answer; None where the answer is text.

    `errors` are statuses besides those that every operation may answer.
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
    """An answer whose `object` is `kind`."""
    return {
        "type": "object",
        "required": ["object", *required],
        "properties": {"object": {"const": kind}} | properties,
    }


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}
