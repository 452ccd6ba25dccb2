"""A llama-server whose answers a script decides. The prompts, the cache and the parsing of calls are its own.

A call is forced by its schema: the one tool that the server knows takes constants only, and has to be called, while the
template writes the tools that the client declared (`shown_tools`). A grammar forces other text; it cannot with tools.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from tests.clients.support.chat_script import ChatScript
from tests.gateway.support.gateway import running

from eyas.base.tokens.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
STRONG = 30.0  # logit bias: beyond every logit of a random model


@dataclass(eq=False)
class Asked:
    """A chat request: as it came, and the stream or the body that answered it."""

    body: dict
    status: int | None = None
    reply: bytes = b""

    @property
    def usage(self) -> dict:
        """The usage that the server reported."""
        if not self.body.get("stream"):
            return json.loads(self.reply)["usage"]
        lines = [line.removeprefix("data: ") for line in self.reply.decode().split("\n")]
        chunks = [json.loads(line) for line in lines if line.startswith("{")]
        return next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))


@dataclass
class Forcing:
    """The app in front of the server at `url`. `asked` are the chat requests that came, but for a router's canary."""

    url: str
    folder: Path  # of the model
    script: ChatScript = field(default_factory=ChatScript)
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        codec = Tokenizer.load(self.folder)
        # The answer may begin with reasoning that never ends, and a type of the content may have any length. The
        # grammar takes a control token also where its characters are spelled.
        control = set(codec.special.values())
        spelled = [one for one in range(min(control)) if codec.token_bytes(one).startswith(b"<")]
        bias = {number: -2 * STRONG for number in spelled}
        bias |= {codec.special["<|channel|>"]: -STRONG, codec.special["<|message|>"]: STRONG}
        self._bias = [list(pair) for pair in bias.items()]
        self.app = Starlette(routes=[Route("/{path:path}", self._pass, methods=["GET", "POST"])])

    @contextmanager
    def serving(self) -> Iterator[str]:
        with running(self.app, Nothing()) as url:
            yield url

    async def _pass(self, request: Request) -> StreamingResponse:
        raw, path = await request.body(), request.url.path
        asked = None
        if path == CHAT:
            body = json.loads(raw)
            asked = Asked(body)
            if "tools" in body:
                self.asked.append(asked)
            raw = json.dumps(self._forced(body)).encode()
        client = httpx.AsyncClient(base_url=self.url, timeout=300)
        sent = client.build_request(request.method, path, content=raw, headers={"content-type": "application/json"})
        reply = await client.send(sent, stream=True)
        if asked is not None:
            asked.status = reply.status_code
        headers = {"content-type": reply.headers.get("content-type", "application/json")}
        return StreamingResponse(passed(client, reply, asked), reply.status_code, headers)

    def _forced(self, body: Mapping) -> dict:
        last = self.script(dict(body))[-1]
        shown = {"chat_template_kwargs": {"shown_tools": body.get("tools", [])}}
        rest = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
        if last.recipient is None:
            text = json.dumps(f"<|channel|>final<|message|>{last.content}")
            return rest | shown | {"grammar": f"root ::= {text}"}
        given = json.loads(last.content)
        function = {
            "name": last.recipient.removeprefix("functions."),
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {name: {"const": value} for name, value in given.items()},
                "required": list(given),
                "additionalProperties": False,
            },
        }
        tools = [{"type": "function", "function": function}]
        return rest | shown | {"tools": tools, "tool_choice": "required", "temperature": 0, "logit_bias": self._bias}


class Nothing:
    def close(self) -> None:
        pass


async def passed(client: httpx.AsyncClient, reply: httpx.Response, asked: Asked | None) -> AsyncIterator[bytes]:
    try:
        async for chunk in reply.aiter_bytes():
            if asked is not None:
                asked.reply += chunk
            yield chunk
    finally:
        await reply.aclose()
        await client.aclose()
