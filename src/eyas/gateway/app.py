"""The routes. Each reads a body, starts a turn and hands its deltas to a dialect."""

from __future__ import annotations

import asyncio
import datetime
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from eyas.base.errors import EyasError
from eyas.base.ports import EnginePort
from eyas.base.tokenizer import TextCodec
from eyas.base.types import ModelInfo, Request
from eyas.gateway import openai
from eyas.gateway.errors import envelope, on_eyas_error, on_http_exception, on_unexpected
from eyas.gateway.stream import DONE, ClientGone, EventStream, sse, until_disconnect
from eyas.gateway.turn import Delta, Turn

__all__ = ["create_app"]

MAX_BODY_BYTES = 16 << 20


def create_app(
    engine: EnginePort,
    codec: TextCodec,
    *,
    served_name: str | None = None,
    today: Callable[[], datetime.date] = datetime.date.today,
) -> Starlette:
    """The HTTP side of `engine`, under its own name or `served_name`; `today` is the date that the model is told."""
    info = engine.info if served_name is None else replace(engine.info, name=served_name)
    gateway = _Gateway(engine, info, codec, today)
    return Starlette(
        routes=[
            Route("/health", gateway.health),
            Route("/ready", gateway.ready),
            Route("/v1/models", gateway.models),
            Route("/v1/models/{name:path}", gateway.model),
            Route("/v1/chat/completions", gateway.chat, methods=["POST"]),
        ],
        exception_handlers={
            EyasError: on_eyas_error,
            HTTPException: on_http_exception,
            Exception: on_unexpected,
        },
    )


class _Gateway:
    def __init__(
        self, engine: EnginePort, info: ModelInfo, codec: TextCodec, today: Callable[[], datetime.date]
    ) -> None:
        self._engine = engine
        self._info = info
        self._codec = codec
        self._today = today
        self._created = int(time.time())

    async def health(self, request: HttpRequest) -> Response:
        """The process is alive."""
        return _json({"status": "ok"})

    async def ready(self, request: HttpRequest) -> Response:
        """The engine serves; it was loaded and warm before the app was made."""
        info = self._info
        if self._engine.failure is not None:
            return _json({"status": "failed", "error": self._engine.failure}, status=503)
        return _json({"status": "ready", "model": info.name, "drafter": info.drafter, "context": info.context})

    async def models(self, request: HttpRequest) -> Response:
        return _json({"object": "list", "data": [openai.model_entry(self._info, self._created)]})

    async def model(self, request: HttpRequest) -> Response:
        name, info = request.path_params["name"], self._info
        if name != info.name:
            raise HTTPException(404, f"no model '{name}' here; this server has '{info.name}'")
        return _json(openai.model_entry(info, self._created))

    async def chat(self, request: HttpRequest) -> ASGIApp:
        info = self._info
        body = openai.decode_body(await _read_body(request), info)
        request_id = f"chatcmpl-{uuid.uuid4().hex}"
        engine_request = Request(
            request_id=request_id,
            # In a thread: megabytes of text take seconds, and other streams must go on.
            prompt_ids=await asyncio.to_thread(openai.prompt_ids, body, self._codec, date=self._today().isoformat()),
            params=openai.sampling_params(body),
        )
        reply = openai.ChatReply(request_id, body, info, self._codec)
        turn = Turn(self._engine, self._codec, engine_request, stops=openai.stop_strings(body))
        if body.stream:
            return EventStream(_chunks(turn, reply), on_close=turn.close)
        try:
            deltas = await until_disconnect(request.receive, _collect(turn))
        except ClientGone:
            return Response(status_code=499)  # nginx's "client closed request"; nobody reads it
        finally:
            turn.close()
        return _json_bytes(reply.whole(deltas))


async def _collect(turn: Turn) -> list[Delta]:
    return [delta async for delta in turn.deltas()]


async def _chunks(turn: Turn, reply: openai.ChatReply) -> AsyncGenerator[bytes, None]:
    """Server-sent events of one answer; one that fails half-way ends with an error and without [DONE]."""
    try:
        async for delta in turn.deltas():
            yield sse(reply.chunk(delta))
    except EyasError as error:
        yield sse(envelope(str(error), "server_error"))
        return
    if (usage := reply.usage_chunk()) is not None:
        yield sse(usage)
    yield DONE


async def _read_body(request: HttpRequest) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
    return bytes(body)


def _json(value: object, *, status: int = 200) -> Response:
    return _json_bytes(msgspec.json.encode(value), status=status)


def _json_bytes(body: bytes, *, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type="application/json")
