"""Errors in the envelope of the OpenAI API: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import msgspec

from eyas.gateway.http.errors import ErrorFormat, Failure
from eyas.gateway.http.operations import Schema
from eyas.gateway.http.stream import sse

__all__ = ["ERRORS", "ERROR_SCHEMA"]

TYPES = {"queue_full": "rate_limit_error", "unavailable": "service_unavailable_error"}  # by code
ERROR_SCHEMA: Schema = {
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


class _Detail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class _Envelope(msgspec.Struct, kw_only=True):
    error: _Detail


def _body(failure: Failure) -> bytes:
    kind = TYPES.get(failure.code or "") or ("server_error" if failure.status >= 500 else "invalid_request_error")
    detail = _Detail(message=failure.message, type=kind, param=failure.param, code=failure.code)
    return msgspec.json.encode(_Envelope(error=detail))


def _event(failure: Failure) -> bytes:
    """Return the event that ends a failed stream; no [DONE] follows."""
    return sse(_body(failure))


ERRORS = ErrorFormat(body=_body, event=_event)
