"""Reads a server's errors, by status or inside a stream, as errors of the client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from eyas.base.serving.failures import error_message, is_mistake, message_of, status_of, verdict_of
from eyas.base.serving.retry_after import retry_after_s
from eyas.client.errors import Broken, ClientError, Refused, ServerBusy

__all__ = ["INVALID_JSON", "error_in_stream", "error_in_whole", "error_of", "hidden"]

INVALID_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # raised for bytes that are none
LOADING_S = 2.0  # when a model that is being loaded may be there
MAX_PLAIN = 200  # characters shown of an error that is no JSON
# Types and codes of errors inside a stream, as this server, the router and vLLM send them.
FULL = frozenset({"queue_full", "queue_timeout", "rate_limit_error", "rate_limit_exceeded"})
UNAVAILABLE = frozenset({"unavailable", "service_unavailable_error", "overloaded_error"})


def error_of(status: int, headers: Mapping[str, str], body: bytes, endpoint: str) -> ClientError:
    """Return the error for an answer whose status is none of success."""
    value = _decoded(body)
    message = _said(value, body) or "without a word why"
    if 300 <= status < 400:
        detail = f"it answers with a redirect ({status}), which is not followed"
        return Broken(detail, kind="malformed", endpoint=endpoint, remedy="use the address that it leads to")
    if status == 504 and _kinds(_error_in(value)) & FULL:  # the router's budget for its queue
        return ServerBusy(message, retry_after_s(headers), endpoint=endpoint)
    return _judged(status, message, retry_after_s(headers), endpoint)


def error_in_stream(value: Any, endpoint: str) -> ClientError:
    """Return the error that an event of a stream holds: as `error`, or the event itself is one."""
    error, message = _error_in(value), error_message(value) or message_of(value)
    status = status_of(error)
    if is_mistake(error):
        return Refused(status or 400, message, endpoint=endpoint)
    if status is not None and verdict_of(status, message) != "failure":
        return _judged(status, message, None, endpoint)
    kinds = _kinds(error)
    if kinds & FULL:
        return ServerBusy(message, None, endpoint=endpoint)
    if kinds & UNAVAILABLE or status == 503:
        return ServerBusy(message, None, endpoint=endpoint, kind="status")
    return Broken(f"it sent an error: {message}", kind="status", endpoint=endpoint)


def error_in_whole(body: bytes, endpoint: str) -> ClientError:
    """Return the error for JSON where a stream was asked for: some servers send their errors with the status 200."""
    value = _decoded(body)
    if error_message(value) is not None:
        return error_in_stream(value, endpoint)
    what = "it answers with JSON, though a stream of events was asked for"
    return Broken(what, kind="malformed", endpoint=endpoint, remedy="ask a server that streams")


def _judged(status: int, message: str, after_s: float | None, endpoint: str) -> ClientError:
    match verdict_of(status, message):
        case "full":
            return ServerBusy(message, after_s, endpoint=endpoint)
        case "loading":
            return ServerBusy(message, after_s or LOADING_S, endpoint=endpoint, is_loading=True)
        case "failure" if status == 503 and after_s is not None:
            return ServerBusy(message, after_s, endpoint=endpoint, kind="status")
        case "failure":
            return Refused(status, message, endpoint=endpoint, kind="status")
        case "mistake":
            return Refused(status, message, endpoint=endpoint)


def hidden(body: bytes, key: str | None) -> bytes:
    """Return an error's bytes without the key that the server was sent, as it is or as JSON may have it."""
    if key:
        quoted = json.dumps(key)[1:-1]
        for form in (key, quoted, quoted.replace("/", "\\/")):
            body = body.replace(form.encode(), b"***")
    return body


def _decoded(body: bytes) -> Any:
    """Return what a body of JSON holds; None if it is none."""
    try:
        return msgspec.json.decode(body)
    except INVALID_JSON:
        return None


def _error_in(value: Any) -> Any:
    return value["error"] if error_message(value) is not None else value


def _kinds(error: Any) -> set[str]:
    return {str(error.get(name)) for name in ("type", "code")} if isinstance(error, Mapping) else set()


def _said(value: Any, body: bytes) -> str:
    """Return what an error's body says, `value` once decoded; its beginning where that is not in a known place."""
    return message_of(value) or " ".join(body[: 8 * MAX_PLAIN].decode("utf-8", "replace").split())[:MAX_PLAIN]
