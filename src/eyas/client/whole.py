"""Answers that come as a whole: the names of models, and vectors of texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from eyas.client.clock import Clock
from eyas.client.errors import Broken, ClientError
from eyas.client.question import encoded
from eyas.client.refusals import INVALID_JSON
from eyas.client.server import Server
from eyas.client.tries import Tries

__all__ = ["first_model", "model_names", "vectors_of"]

MODELS = "/models"
EMBEDDINGS = "/embeddings"
T = TypeVar("T")


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class _Embedding(Struct):
    embedding: list[float]
    index: int


class _Embeddings(Struct):
    data: list[_Embedding]


async def model_names(server: Server, *, until: float) -> tuple[str, ...]:
    """Return the names of the server's models. Raises TimeoutError at `until`, a time of the loop."""
    body = await server.whole("GET", MODELS, None, until=until)
    return tuple(model.id for model in _decoded(body, _Models, server).data)


async def first_model(server: Server, *, until: float) -> str:
    """Return the name of the server's first model, as a router's file has it; asked for once."""
    if server.first_model is None:
        names = await model_names(server, until=until)
        if not names:
            raise Broken("it names no model", kind="malformed", endpoint=server.name, remedy="pass model=...")
        server.first_model = names[0]
    return server.first_model


async def vectors_of(
    server: Server, texts: Sequence[str], model: str | None, clock: Clock, *, max_tries: int
) -> list[list[float]]:
    """Return a vector for each text, in their order. Raises ClientError."""
    tries = Tries(server, clock, max_tries=max_tries)
    try:
        while True:
            await tries.begin()
            try:
                name = model or await first_model(server, until=clock.due)
                asked = encoded({"model": name, "input": texts, "encoding_format": "float"})
                body = await server.whole("POST", EMBEDDINGS, asked, until=clock.due)
                found = sorted(_decoded(body, _Embeddings, server).data, key=lambda one: one.index)
                if len(found) != len(texts):
                    what = f"it sent {len(found)} vectors for {len(texts)} texts"
                    raise Broken(what, kind="malformed", endpoint=server.name)
            except (TimeoutError, ClientError) as error:
                tries.failed(tries.error_of(error))
                continue
            tries.ended(None)
            return [one.embedding for one in found]
    finally:
        tries.ended(asyncio.CancelledError())


def _decoded(body: bytes, kind: type[T], server: Server) -> T:
    """Return a whole answer as `kind`. Raises Broken."""
    try:
        return msgspec.json.decode(body, type=kind)
    except INVALID_JSON:
        raise Broken("its answer is none of this API", kind="malformed", endpoint=server.name) from None
