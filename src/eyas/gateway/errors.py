"""Our errors as HTTP answers: status codes and the error envelope of the OpenAI API."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from eyas.base.errors import Busy, EyasError, InvalidRequest

__all__ = ["EngineFailed", "envelope", "on_eyas_error", "on_http_exception", "on_unexpected"]

RETRY_AFTER_S = 1


class EngineFailed(EyasError):
    """The engine ended a request that it had accepted."""


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


def _answer(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


async def on_eyas_error(request: Request, error: Exception) -> Response:
    """400 for a request that cannot be served as asked, 429 for a full queue, 500 for a failed engine."""
    if isinstance(error, InvalidRequest):
        return _answer(400, envelope(str(error), "invalid_request_error", param=error.param))
    if isinstance(error, Busy):
        body = envelope(str(error), "rate_limit_error", code="queue_full")
        return _answer(429, body, {"Retry-After": str(RETRY_AFTER_S)})
    return _answer(500, envelope(str(error), "server_error"))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, and what a route refuses by status alone."""
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code in (404, 405) and message in ("Not Found", "Method Not Allowed"):
        message = f"{message}: {request.method} {request.url.path}"
    return _answer(error.status_code, envelope(message, "invalid_request_error"), dict(error.headers or {}))


async def on_unexpected(request: Request, error: Exception) -> Response:
    """A bug of ours: the traceback goes to the log, not to the client."""
    return _answer(500, envelope("internal error; the server's log has the details", "server_error"))
