"""A router with models for text, vision and embeddings, real images, and parts of messages that hold them."""

import base64
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.router.support.relayed import Relayed, relayed, settings_of
from tests.router.support.script import Script
from tests.router.support.scripted import Received, ScriptedBackend

from eyas.router.settings.schema import ModelSettings, RouterSettings

__all__ = [
    "CHAT",
    "DESCRIBED",
    "MESSAGES",
    "RESPONSES",
    "SEEN",
    "Sighted",
    "data_url",
    "part",
    "png",
    "sighted",
    "text",
]

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SEEN = "A square."  # what the vision model says of any image
DESCRIBED = f"[There is an image here. Another model describes it: {SEEN}]"


def png(number: int, size: int = 2) -> bytes:
    """A square image; each number has a colour of its own."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + number.to_bytes(3, "big") * size
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * size)) + chunk(b"IEND", b"")


def data_url(number: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(number)).decode()}"


def part(path: str, number: int) -> dict[str, Any]:
    """An image as part of a message."""
    if path == CHAT:
        return {"type": "image_url", "image_url": {"url": data_url(number), "detail": "auto"}}
    if path == RESPONSES:
        return {"type": "input_image", "image_url": data_url(number), "detail": "auto"}
    data = base64.b64encode(png(number)).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def text(path: str, words: str) -> dict[str, Any]:
    """A text as part of a message."""
    return {"type": "input_text" if path == RESPONSES else "text", "text": words}


@dataclass
class Sighted:
    """A running relay: `a` is for text, `v` for vision, `e` for embeddings."""

    router: Relayed
    a: ScriptedBackend
    v: ScriptedBackend
    e: ScriptedBackend

    @property
    def questions(self) -> list[Received]:
        """What the vision model was asked by the router itself."""
        return [one for one in self.v.asked if one.json.get("max_tokens") == 200 and one.json["temperature"] == 0]

    async def post(self, path: str, turns: list[dict[str, Any]], **fields: Any) -> tuple[dict[str, str], Any]:
        """Send turns of a conversation; returns the headers of the answer and its JSON."""
        name = "input" if path == RESPONSES else "messages"
        limit = {"max_tokens": 100} if path == MESSAGES else {}
        body = {"model": "scripted", name: turns, **limit, **fields}
        headers = {"x-session-id": fields.pop("session")} if "session" in fields else {}
        body.pop("session", None)
        async with self.router.session.post(self.router.url + path, json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return dict(response.headers), answer


def sighted_settings(backends: list[ScriptedBackend], **fields: Any) -> RouterSettings:
    """Settings with the models scripted on a, seer on v, vectors on e, as far as these backends are there."""
    roles = {"a": ("scripted", "text"), "v": ("seer", "vision"), "e": ("vectors", "embeddings")}
    settings = settings_of(backends, **fields)
    return replace(
        settings,
        backends=tuple(replace(one, role=roles[one.name][1]) for one in settings.backends),
        models=tuple(ModelSettings(name=roles[one.name][0], backends=(one.name,)) for one in backends),
    )


@asynccontextmanager
async def sighted(
    *, is_ours: bool = True, script: Script | None = None, without: str = "", **fields: Any
) -> AsyncIterator[Sighted]:
    """Serve the relay. `script` is that of the vision model; `without` are backends that the file does not have."""
    a = ScriptedBackend("a", script=Script(mark="m1"), is_ours=is_ours)
    v = ScriptedBackend("v", model="seer", script=script or Script(text=SEEN))
    e = ScriptedBackend("e", model="vectors")
    async with a.serving(), v.serving(), e.serving():
        backends = [one for one in (a, v, e) if one.name not in without]
        async with relayed(*backends, settings=sighted_settings(backends, **fields)) as router:
            yield Sighted(router, a, v, e)
