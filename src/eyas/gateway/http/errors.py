"""Our errors as HTTP answers: status codes and the error envelope of the OpenAI API."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from eyas.base.errors import Busy, EyasError, InvalidRequest, Unavailable
from eyas.gateway.http.outcome import CLIENT_LEFT

__all__ = [
    "EngineFailed",
    "Refused",
    "body_of",
    "envelope",
    "headers_of",
    "on_client_left",
    "on_eyas_error",
    "on_http_exception",
    "on_unexpected",
    "status_of",
]

BUSY_RETRY_S = 1
UNAVAILABLE_RETRY_S = 5
KINDS = {400: "invalid_request_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


class EngineFailed(EyasError):
    """The engine ended a request that it had accepted."""


class Refused(InvalidRequest):
    """A request that is refused with a status or a code of its own, in the words of the OpenAI API."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message, param=param)
        self.code = code
        self.status = status


class _Detail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class _Envelope(msgspec.Struct, kw_only=True):
    error: _Detail


def envelope(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """`{"error": {message, type, param, code}}` as JSON."""
    return msgspec.json.encode(_Envelope(error=_Detail(message=message, type=kind, param=param, code=code)))


def status_of(error: EyasError) -> int:
    """400 for a request that cannot be served as asked, 429 for a full queue, 503 and 500 for troubles of ours."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, InvalidRequest):
        return 400
    if isinstance(error, Busy):
        return 429
    return 503 if isinstance(error, Unavailable) else 500


def body_of(error: EyasError) -> bytes:
    """The envelope of an error; also the last event of a stream that it ends."""
    status = status_of(error)
    if isinstance(error, InvalidRequest):
        code = error.code if isinstance(error, Refused) else None
        return envelope(str(error), KINDS[400], param=error.param, code=code)
    code = {429: "queue_full", 503: "unavailable"}.get(status)
    return envelope(str(error), KINDS.get(status, "server_error"), code=code)


def headers_of(error: EyasError) -> dict[str, str]:
    """`Retry-After` in seconds where trying again may help."""
    seconds = {429: BUSY_RETRY_S, 503: UNAVAILABLE_RETRY_S}.get(status_of(error))
    return {} if seconds is None else {"Retry-After": str(seconds)}


def _answer(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


async def on_client_left(request: Request, error: Exception) -> Response:
    """The client left before its body was complete, or its turn came; nobody reads this."""
    return Response(status_code=CLIENT_LEFT)


async def on_eyas_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, EyasError)
    return _answer(status_of(error), body_of(error), headers_of(error))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, and what a route refuses by status alone."""
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code in (404, 405) and message in ("Not Found", "Method Not Allowed"):
        message = f"{message}: {request.method} {request.url.path}"
    return _answer(error.status_code, envelope(message, KINDS[400]), dict(error.headers or {}))


async def on_unexpected(request: Request, error: Exception) -> Response:
    """A bug of ours: the traceback goes to the log, not to the client."""
    return _answer(500, envelope("internal error; the server's log has the details", "server_error"))
