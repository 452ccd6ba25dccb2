"""An OpenAI endpoint whose answers a test writes: steps of waiting, text, pauses and ends, by the question's text."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from eyas.base.serving.waiting import Waiting, waiting_comment

__all__ = ["Break", "Pause", "Refuse", "Step", "Think", "WrittenEndpoint"]


@dataclass(frozen=True)
class Pause:
    """Nothing comes for a while."""

    seconds: float


@dataclass(frozen=True)
class Think:
    """A piece of reasoning."""

    text: str


@dataclass(frozen=True)
class Refuse:
    """An error in the place of an answer; only as the first step."""

    status: int
    message: str


@dataclass(frozen=True)
class Break:
    """The connection ends in the middle of the answer."""


Step = str | Pause | Think | Refuse | Break | Waiting
Writer = Callable[[list[dict[str, Any]]], Sequence[Step]]


@dataclass
class WrittenEndpoint:
    """`write` returns the steps of the answer to messages; `asked` has the bodies of requests as they came."""

    write: Writer
    sent: Callable[[dict[str, Any], str], None] = lambda body, text: None  # told of each text as it is sent
    model: str = "scripted"
    context: int | None = 8192
    list_after_s: float = 0.0  # how long its list of models takes
    counts: str | None = None  # its metrics, in Prometheus' text format
    asked: list[dict[str, Any]] = field(default_factory=list)
    scraped: list[Mapping[str, str]] = field(default_factory=list)  # headers of requests for its metrics
    num_running: int = 0
    url: str = ""

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator["WrittenEndpoint"]:
        """Serve in the running loop."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        self.scraped.append(request.headers)
        return web.Response(status=404) if self.counts is None else web.Response(text=self.counts)

    async def _models(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.list_after_s)
        entry = {"id": self.model, "object": "model"} | (
            {} if self.context is None else {"max_model_len": self.context}
        )
        return web.json_response({"object": "list", "data": [entry]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        steps = list(self.write(body["messages"]))
        if steps and isinstance(first := steps[0], Refuse):
            return web.json_response({"error": {"message": first.message, "type": "x"}}, status=first.status)
        self.num_running += 1
        try:
            return await self._stream(request, body, steps)
        finally:
            self.num_running -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any], steps: Sequence[Step]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        num_tokens = 0
        for step in steps:
            match step:
                case Pause():
                    await asyncio.sleep(step.seconds)
                case Waiting():
                    await response.write(waiting_comment(step))
                case Break():
                    assert request.transport is not None
                    request.transport.close()
                    return response
                case Think():
                    await response.write(self._chunk({"reasoning_content": step.text}))
                case str():
                    num_tokens += 1
                    self.sent(body, step)
                    await response.write(self._chunk({"content": step}))
        await response.write(self._chunk({}, "stop"))
        usage = {"prompt_tokens": 7, "completion_tokens": num_tokens, "total_tokens": 7 + num_tokens}
        await response.write(self._data({"choices": [], "usage": usage, "model": self.model}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return self._data({"model": self.model, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    @staticmethod
    def _data(value: object) -> bytes:
        return b"data: " + json.dumps(value).encode() + b"\n\n"


def words(text: str, every_s: float = 0.0, *, size: int = 8) -> list[Step]:
    """The steps of a text that comes in pieces."""
    found: list[Step] = []
    for at in range(0, len(text), size):
        found += [text[at : at + size], *([Pause(every_s)] if every_s else [])]
    return found
