"""Maps errors to HTTP answers: a status and a neutral failure, which the dialect of the request's path formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from eyas.base.errors import Busy, EyasError, InvalidRequest, Unavailable
from eyas.gateway.http.outcome import CLIENT_LEFT

__all__ = [
    "CODES",
    "ERROR_FORMAT",
    "INTERNAL",
    "EngineFailed",
    "ErrorFormat",
    "Failure",
    "Refused",
    "error_body",
    "error_event",
    "error_head",
    "failure_of",
    "on_client_left",
    "on_eyas_error",
    "on_http_exception",
    "on_unexpected",
    "status_of",
]

ERROR_FORMAT = "error_format"  # key in a scope's state: the ErrorFormat of the request's path
INTERNAL = "internal error; the server's log has the details"
BUSY_RETRY_S = 1
UNAVAILABLE_RETRY_S = 5
CODES = {429: "queue_full", 503: "unavailable"}  # by status, where a failure has no code of its own


class EngineFailed(EyasError):
    """The engine ended a request that it had accepted."""


class Refused(InvalidRequest):
    """A request that is refused with a status or a code of its own; `code` is machine-readable."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message, param=param)
        self.code = code
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failed request. `error` is the cause if there is one, for dialects that format some errors differently.

    Codes: queue_full, queue_timeout (of the router), unavailable, model_not_found, context_length_exceeded,
    invalid_api_key, host_not_allowed, origin_not_allowed, body_too_large, or what a dialect's own routes refuse with.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    error: EyasError | None = None
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorFormat:
    """A dialect's formats of a failure: `body` as a JSON body, `event` as the last event of a stream.

    `statuses` are those for which the dialect has numbers of its own; `headers` gives more headers by the status.
    """

    body: Callable[[Failure], bytes]
    event: Callable[[Failure], bytes]
    statuses: Mapping[int, int] = field(default_factory=dict)
    headers: Callable[[int], Mapping[str, str]] = lambda status: {}

    def head(self, failure: Failure) -> tuple[int, Mapping[str, str]]:
        """Return the status and the headers of the answer to a failed request."""
        status = self.statuses.get(failure.status, failure.status)
        return status, self.headers(status)


def status_of(error: EyasError) -> int:
    """Return 400 for a request that cannot be served as sent, 429 for a full queue, 503 or 500 for server errors."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, InvalidRequest):
        return 400
    if isinstance(error, Busy):
        return 429
    return 503 if isinstance(error, Unavailable) else 500


def failure_of(error: EyasError) -> Failure:
    """Return an error as a failure, with its status and its code."""
    status = status_of(error)
    if isinstance(error, InvalidRequest):
        code = error.code if isinstance(error, Refused) else None
        return Failure(status=status, message=str(error), param=error.param, code=code, error=error)
    return Failure(status=status, message=str(error), code=CODES.get(status), error=error)


def error_body(scope: Mapping[str, Any], failure: Failure) -> bytes:
    """Return the body for a failure, in the dialect of the request's path."""
    return _format_of(scope).body(replace(failure, request_id=scope["state"].get("request_id")))


def error_head(scope: Mapping[str, Any], failure: Failure) -> tuple[int, Mapping[str, str]]:
    """Return status and headers for a failure, in the dialect of the request's path."""
    return _format_of(scope).head(failure)


def error_event(scope: Mapping[str, Any], failure: Failure) -> bytes:
    """Return the event that ends a failed stream, in the dialect of the request's path."""
    return _format_of(scope).event(replace(failure, request_id=scope["state"].get("request_id")))


def _format_of(scope: Mapping[str, Any]) -> ErrorFormat:
    found: ErrorFormat = scope["state"][ERROR_FORMAT]
    return found


def _answer(request: Request, failure: Failure, headers: Mapping[str, str] | None = None) -> Response:
    status, more = error_head(request.scope, failure)
    return Response(
        error_body(request.scope, failure), status, {**(headers or {}), **more}, media_type="application/json"
    )


async def on_client_left(request: Request, error: Exception) -> Response:
    """Answer for a client that disconnected before its body was complete or its work began; it is never read."""
    return Response(status_code=CLIENT_LEFT)


async def on_eyas_error(request: Request, error: Exception) -> Response:
    """Answer with the error, and with `Retry-After` in seconds if trying again may help."""
    assert isinstance(error, EyasError)
    failure = failure_of(error)
    seconds = {429: BUSY_RETRY_S, 503: UNAVAILABLE_RETRY_S}.get(failure.status)
    return _answer(request, failure, None if seconds is None else {"Retry-After": str(seconds)})


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer for unknown paths and methods, and for requests that a route refuses by status alone."""
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code in (404, 405) and message in ("Not Found", "Method Not Allowed"):
        message = f"{message}: {request.method} {request.url.path}"
    return _answer(request, Failure(status=error.status_code, message=message), dict(error.headers or {}))


async def on_unexpected(request: Request, error: Exception) -> Response:
    """Answer for a bug of the server: the traceback goes to the log, not to the client."""
    return _answer(request, Failure(status=500, message=INTERNAL))
