"""The least that can stand between a client of `/v1/messages` and a chat endpoint: translation and nothing else."""

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.gateway.support.gateway import running

from eyas.base.errors import InvalidRequest
from eyas.gateway.anthropic.errors import ERRORS
from eyas.gateway.http.errors import Failure, failure_of
from eyas.router.messages.counting import Counting
from eyas.router.messages.translation import Translation

PATH = "/v1/messages"


class Front:
    """An app in front of the backend at `url`; `asked` are the bodies that it sent there, `bodies` those that came."""

    def __init__(self, url: str, model: str | None = None) -> None:
        self.url = url
        self.model = model
        self.asked: list[dict] = []
        self.bodies: list[dict] = []
        routes = [
            Route(PATH, self._messages, methods=["POST"]),
            Route(f"{PATH}/count_tokens", self._count, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    def serving(self):
        """A context manager with the app's URL."""
        return running(self.app, SimpleNamespace(close=lambda: None))

    async def _messages(self, request: Request) -> Response:
        raw = await request.body()
        try:
            one = Translation.of(raw)
        except InvalidRequest as error:
            return refused(failure_of(error))
        self.bodies.append(json.loads(raw))
        client = httpx.AsyncClient(base_url=self.url, timeout=120)
        reply = await self._sent(client, one, one.request(self.model))
        if reply.status_code != 200:
            body = await reply.aread()
            again = one.retry_of(reply.status_code, body)
            if again is None:
                await client.aclose()
                return refused(one.error(reply.status_code, body))
            reply = await self._sent(client, one, again)
        if one.is_stream:
            return StreamingResponse(events(client, reply, one), media_type="text/event-stream")
        body = one.whole(await reply.aread())
        await client.aclose()
        return Response(body, media_type="application/json")

    async def _sent(self, client: httpx.AsyncClient, one: Translation, body: bytes) -> httpx.Response:
        self.asked.append(json.loads(body))
        headers = {"content-type": "application/json"}
        return await client.send(client.build_request("POST", one.path, content=body, headers=headers), stream=True)

    async def _count(self, request: Request) -> Response:
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:

            async def ask(path: str, body: bytes) -> bytes | None:
                reply = await client.post(path, content=body, headers={"content-type": "application/json"})
                return reply.content if reply.status_code == 200 else None

            counted = await Counting.of(await request.body()).tokens(ask, self.model)
        return Response(json.dumps({"input_tokens": counted}), media_type="application/json")


async def events(client: httpx.AsyncClient, reply: httpx.Response, one: Translation) -> AsyncIterator[bytes]:
    try:
        async for part in one.parts(reply.aiter_bytes()):
            yield part.data
    finally:
        await reply.aclose()
        await client.aclose()


def refused(failure: Failure) -> Response:
    status, headers = ERRORS.head(failure)
    return Response(ERRORS.body(failure), status, dict(headers), media_type="application/json")
