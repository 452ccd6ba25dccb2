"""A vendor's HTTP API as one record, and the lookup of the one that a path belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.routing import BaseRoute

from eyas.gateway.http.errors import ErrorFormat
from eyas.gateway.http.operations import ApiOperation, Schema
from eyas.gateway.server.context import Context

__all__ = ["REQUEST_ID_HEADER", "Dialect", "Dialects"]

REQUEST_ID_HEADER = "x-request-id"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """Everything that the server knows of a vendor's API.

    `paths` are those that have its error format: `/v1/x` stands for itself and everything below it. `operations` and
    `error_schema` describe routes and errors for `/openapi.json`. Clients find the id of a request in `id_header`.
    """

    name: str
    paths: tuple[str, ...]
    routes: Callable[[Context], Sequence[BaseRoute]]
    errors: ErrorFormat
    error_schema: Schema
    operations: tuple[ApiOperation, ...]
    id_header: str = REQUEST_ID_HEADER


class Dialects:
    """The dialects of a server. The first gets the paths that belong to none: `/metrics`, the page, unknown ones."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self.all = tuple(dialects)
        self._paths = sorted(
            ((path, dialect) for dialect in self.all for path in dialect.paths), key=lambda one: -len(one[0])
        )

    def of(self, path: str) -> Dialect:
        """Return the dialect with the longest path that is `path` or above it."""
        return next(
            (one for prefix, one in self._paths if path == prefix or path.startswith(f"{prefix}/")), self.all[0]
        )
