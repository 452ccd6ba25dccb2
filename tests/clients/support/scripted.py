"""A real engine whose answers a script decides: each is forced, token by token, by a grammar of one sentence.

Prompts, pages and the prefix cache are the engine's own. `Recorder` keeps what was asked over HTTP, what was answered,
and what the engine was given for it.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

from starlette.types import ASGIApp, Receive, Scope, Send
from tests.gateway.support.responses import analysis, call, final, spoken

from eyas.base.harmony.rendering import Message
from eyas.base.ports import Deliver, EnginePort
from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import FinishReason, Request, TokenEvent

__all__ = ["Exchange", "Recorder", "Script", "ScriptedPort", "analysis", "call", "final"]

LONG = 2000  # characters: what the client writes when it wants a summary; its other words are shorter
CURRENT: ContextVar["Exchange | None"] = ContextVar("exchange", default=None)


@dataclass(eq=False)
class Exchange:
    """One HTTP request with its answer. `prompt_ids` and what follows are the engine's; None if it was not asked."""

    path: str
    headers: dict[str, str]
    raw: bytes = b""
    status: int | None = None  # None until the answer begins
    reply: bytes = b""
    prompt_ids: tuple[int, ...] | None = None
    num_cached: int | None = None
    finish: FinishReason | None = None
    replies: Sequence[Message] = ()

    @property
    def body(self) -> dict:
        return json.loads(self.raw)

    @property
    def is_agent(self) -> bool:
        return "x-claude-code-agent-id" in self.headers

    @property
    def events(self) -> list[dict]:
        """The events of a stream, as far as it came."""
        lines = self.reply.decode().split("\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]

    @property
    def usage(self) -> dict:
        """The usage that the client was told."""
        if not self.raw or not self.body.get("stream"):
            return json.loads(self.reply).get("usage", {})
        return next((event["usage"] for event in reversed(self.events) if event["type"] == "message_delta"), {})

    @property
    def cached_share(self) -> float:
        """Tokens of the prompt that the client was told came from the cache, as a share of all of them."""
        usage = self.usage
        return usage["cache_read_input_tokens"] / (usage["cache_read_input_tokens"] + usage["input_tokens"])


class Recorder:
    """An ASGI app around another, which keeps every exchange with it under /v1/."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.all: list[Exchange] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        exchange = Exchange(scope["path"], headers)
        self.all.append(exchange)
        CURRENT.set(exchange)

        async def receiving():
            message = await receive()
            exchange.raw += message.get("body", b"")
            return message

        async def sending(message) -> None:
            exchange.status = message.get("status", exchange.status)
            exchange.reply += message.get("body", b"")
            await send(message)

        await self._app(scope, receiving, sending)

    def on(self, path: str) -> list[Exchange]:
        return [exchange for exchange in self.all if exchange.path == path]

    @property
    def messages(self) -> list[Exchange]:
        return self.on("/v1/messages")


class Script:
    """What the model says: to a prompt with a marker in it, the replies of that marker, one for each tool step.

    Which of them depends on the request alone: on the calls that its history has since the marker. So an answer that is
    asked for again is the same again. What has no marker (a title, a summary) gets an answer that fits.
    """

    def __init__(self) -> None:
        self._replies: dict[str, Sequence[Sequence[Message]]] = {}
        self.other: Callable[[dict], Sequence[Message]] = lambda body: [final("Here is a short summary of the work.")]

    def on(self, marker: str, *replies: Sequence[Message]) -> None:
        self._replies[marker] = replies

    def __call__(self, body: dict) -> Sequence[Message]:
        if (wanted := body.get("output_config", {}).get("format")) is not None:
            return [final(json.dumps(_fitting(wanted["schema"])))]
        num_calls = 0
        for message in reversed(body["messages"]):
            blocks = _blocks(message["content"])
            if message["role"] == "assistant":
                num_calls += sum(block["type"] == "tool_use" for block in blocks)
            elif message["role"] == "user":
                text = "".join(block.get("text", "") for block in blocks)
                found = next((marker for marker in self._replies if marker in text), None)
                if found is not None:
                    return self._replies[found][num_calls]
                if len(text) > LONG:
                    break
        return self.other(body)


class ScriptedPort:
    """An EnginePort around another, whose answers are those of `script`."""

    def __init__(self, engine: EnginePort, codec: TextCodec, script: Callable[[dict], Sequence[Message]]) -> None:
        self._engine = engine
        self._codec = codec
        self.script = script
        self.on_token: Callable[[Exchange], None] = lambda exchange: None  # called from the engine's thread

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def submit(self, request: Request, deliver: Deliver) -> None:
        exchange = CURRENT.get()
        assert exchange is not None
        exchange.prompt_ids = request.prompt_ids
        exchange.replies = self.script(exchange.body)
        grammar = sentence(spoken(self._codec, *exchange.replies))

        def delivered(event: TokenEvent) -> None:
            exchange.num_cached = event.num_cached
            exchange.finish = event.finish
            deliver(event)
            if event.finish is None:
                self.on_token(exchange)

        self._engine.submit(replace(request, params=replace(request.params, grammar=grammar)), delivered)


def sentence(ids: Iterable[int]) -> str:
    """Return a grammar of exactly these tokens."""
    return "start: " + " ".join(f"<[{one}]>" for one in ids)


def _blocks(content) -> list[dict]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _fitting(schema: dict):
    """Return a small value that fits a simple schema."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: _fitting(inner) for name, inner in schema.get("properties", {}).items()}
        case "array":
            return []
        case "boolean":
            return False
        case "integer" | "number":
            return 1
    return "Eggs"
