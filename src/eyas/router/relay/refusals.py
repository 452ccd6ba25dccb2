"""Reads a backend's status: an answer, a full queue, a failure, or a refusal that is for the client."""

from __future__ import annotations

import msgspec

from eyas.base.serving.failures import message_of, verdict_of
from eyas.gateway.http.errors import Failure
from eyas.gateway.http.explain import INVALID_JSON
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.headers import Headers
from eyas.router.upstream.upstream import Reply

__all__ = ["Full", "Passed", "hidden", "read_refusal"]

MAX_ERROR = 1 << 20  # bytes of an error's body
NOT_OURS = (401, 407)  # about the router's key: a client can do nothing about it, and its own must not be blamed
AGAIN_S = 2.0  # when a model that is being loaded may be there


class Full(Exception):
    """The backend takes no request now; no failure."""

    def __init__(self, retry_after_s: float | None) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


class Passed(Exception):
    """A refusal that is for the client: status, headers and body as they came, or as `failure` says it."""

    def __init__(self, status: int, headers: Headers, body: bytes, failure: Failure) -> None:
        super().__init__()
        self.status, self.headers, self.body, self.failure = status, headers, body, failure


async def read_refusal(reply: Reply, key: str | None) -> Passed:
    """Return a refusal of a status that is none of success. Raises Full; UpstreamError for a failure."""
    body = hidden(await reply.read(MAX_ERROR), key)
    message = _message(body)
    status = reply.status
    if status in NOT_OURS:
        raise UpstreamError("status", f"it refuses the router's key ({status})")
    match verdict_of(status, message):
        case "full":
            raise Full(reply.retry_after_s)
        case "loading":
            raise Full(reply.retry_after_s or AGAIN_S)
        case "failure":
            raise UpstreamError("status", f"status {status}: {message}" if message else f"status {status}")
    return Passed(status, reply.headers, body, Failure(status=status, message=message or f"status {status}"))


def hidden(body: bytes, key: str | None) -> bytes:
    """Return an error's bytes without the key that the backend was sent."""
    return body.replace(key.encode(), b"***") if key else body


def _message(body: bytes) -> str:
    """Return what an error's body says, on one line; "" for what is no JSON."""
    try:
        value = msgspec.json.decode(body)
    except INVALID_JSON:
        return ""
    return message_of(value)
