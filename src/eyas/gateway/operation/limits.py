"""Limits of one request: the bytes of its body; and the request id in answers and logs. Pure ASGI.

Connections, headers and time are bounded one layer below, in connections.py.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.base.units import readable
from eyas.gateway.http.errors import ERROR_FORMAT, Failure, Refused, error_body, error_head, failure_of
from eyas.gateway.http.stream import SEND_BODY
from eyas.gateway.server.dialect import REQUEST_ID_HEADER, Dialects

__all__ = ["Limits", "send_failure"]

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


async def send_failure(scope: Scope, send: Send, failure: Failure, *headers: tuple[bytes, bytes]) -> None:
    """Answer with a failure, in the dialect of the path."""
    body = error_body(scope, failure)
    status, more = error_head(scope, failure)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    head += [(name.encode(), value.encode()) for name, value in more.items()]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


class Limits:
    """Refuses bodies above `max_body` bytes with 413, gives each request an id, and finds the dialect of its errors.

    A body is refused by its Content-Length before any of it is read, or as soon as too much has been read: then the
    route that reads it gets a Refused. `x-request-id` of the caller is kept if it is 1 to 128 harmless
    characters, else a new one is made; it is in the scope's state as `request_id` and in every answer, also under the
    dialect's own header. `on_status` receives the status of each answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        dialects: Dialects,
        max_body: int,
        on_status: Callable[[int], None] = lambda status: None,
    ) -> None:
        self._app = app
        self._dialects = dialects
        self._max_body = max_body
        self._on_status = on_status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        length, given, header = 0, b"", REQUEST_ID_HEADER.encode()
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value)  # the HTTP parser accepts digits only
            elif name == header:
                given = value
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        dialect = self._dialects.of(scope["path"])
        state = {"request_id": request_id.decode(), SEND_BODY: send, ERROR_FORMAT: dialect.errors}
        scope.setdefault("state", {}).update(state)
        id_headers = [(name.encode(), request_id) for name in dict.fromkeys((REQUEST_ID_HEADER, dialect.id_header))]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._on_status(message["status"])
                message["headers"] = [*message["headers"], *id_headers]
                if message["status"] == 413:  # keep-alive would read the body that was refused
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        if length > self._max_body:
            return await send_failure(scope, send_with_id, failure_of(self._too_large()))
        await self._app(scope, self._counted(receive), send_with_id)

    def _counted(self, receive: Receive) -> Receive:
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> Refused:
        message = f"the body is larger than the {readable(self._max_body)} that this server accepts"
        return Refused(message, code="body_too_large", status=413)
