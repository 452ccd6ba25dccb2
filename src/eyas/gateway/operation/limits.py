"""What one request may be: bytes of its body, and an id that answers and logs carry. Pure ASGI.

Connections, headers and time are bounded one layer further down, in connections.py.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.base.units import readable
from eyas.gateway.http.errors import Refused, body_of
from eyas.gateway.http.stream import SEND_BODY

__all__ = ["REQUEST_ID_HEADER", "Limits", "send_json"]

REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


async def send_json(send: Send, status: int, body: bytes, *, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with a whole JSON body."""
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


class Limits:
    """Refuses bodies above `max_body` bytes with 413 and gives each request an id.

    A body is refused by its Content-Length before any of it is read, or as soon as what came is too much: then the
    route that reads it gets a Refused. `x-request-id` of the caller is kept if it is 1 to 128 harmless
    characters, else a new one is made; it is in the scope's state as `request_id` and in every answer. `on_status`
    hears the status of each answer.
    """

    def __init__(self, app: ASGIApp, *, max_body: int, on_status: Callable[[int], None] = lambda status: None) -> None:
        self._app = app
        self._max_body = max_body
        self._on_status = on_status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        length, given, header = 0, b"", REQUEST_ID_HEADER.encode()
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value)  # the HTTP parser takes digits only
            elif name == header:
                given = value
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        scope.setdefault("state", {}).update({"request_id": request_id.decode(), SEND_BODY: send})

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._on_status(message["status"])
                message["headers"] = [*message["headers"], (header, request_id)]
                if message["status"] == 413:  # to read on would be to take what was refused
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        if length > self._max_body:
            return await send_json(send_with_id, 413, body_of(self._too_large()))
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
        message = f"the body is larger than the {readable(self._max_body)} that this server takes"
        return Refused(message, code="body_too_large", status=413)
