"""Errors in the envelope of the Anthropic API: `{"type": "error", "error": {type, message}, "request_id"}`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from eyas.gateway.http.errors import ErrorFormat, Failure
from eyas.gateway.http.operations import Schema
from eyas.gateway.http.stream import named_sse
from eyas.gateway.question.prompt_limit import PromptTooLong

__all__ = ["ERRORS", "ERROR_SCHEMA"]

OVERLOADED = 529
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
RETRIED = (408, 429)  # of the 4xx; clients would repeat 401 and 409 for minutes
ERROR_SCHEMA: Schema = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": ["string", "null"]},
    },
}


class _Detail(msgspec.Struct, kw_only=True):
    type: str
    message: str


class _Envelope(msgspec.Struct, kw_only=True, tag="error"):
    error: _Detail
    request_id: str | None


def _body(failure: Failure) -> bytes:
    fallback = "api_error" if failure.status >= 500 else "invalid_request_error"
    detail = _Detail(type=TYPES.get(failure.status, fallback), message=_message(failure))
    return msgspec.json.encode(_Envelope(error=detail, request_id=failure.request_id))


def _message(failure: Failure) -> str:
    """Return the message with the field in it; clients read the two numbers of a prompt that is too long."""
    error, param = failure.error, failure.param
    if isinstance(error, PromptTooLong):  # a prompt that fills the context leaves no token for the answer
        return f"prompt is too long: {max(error.num_prompt, error.context + 1)} tokens > {error.context} maximum"
    return failure.message if param is None or param in failure.message else f"{param}: {failure.message}"


def _event(failure: Failure) -> bytes:
    return named_sse("error", _body(failure))


def _headers(status: int) -> Mapping[str, str]:
    return {"x-should-retry": "false"} if 400 <= status < 500 and status not in RETRIED else {}


ERRORS = ErrorFormat(body=_body, event=_event, statuses={503: OVERLOADED}, headers=_headers)
