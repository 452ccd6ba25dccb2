"""Asks backends how they are: for their models, and the canary's question. Each time on a connection of its own.

A new connection tells at once whether a server is still there, and keeps no place among those of requests.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from eyas.base.serving.engines import Role
from eyas.client.endpoint import canary
from eyas.gateway.http.explain import INVALID_JSON
from eyas.router.backends.judgement import Look
from eyas.router.upstream.address import Address

__all__ = ["ROUTER_HEADER", "Asker", "Inconclusive"]

ROUTER_HEADER = "x-eyas-router"  # of the answer of a router to /v1/models: its id
MODELS = "/v1/models"
HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "eyas-router"}
CONNECT_S = 5.0
LOOK_S = 10.0
CANARY_S = 180.0  # for a short answer, of a server that may load a model first (Ollama), or compile kernels
MAX_BYTES = 4 << 20
BUSY = frozenset({408, 425, 429})  # besides 5xx: says nothing of the answers that it would give
MAX_TEXT = 200


class Inconclusive(Exception):
    """The canary's question got no answer that says anything of the backend's answers."""


class Asker:
    """Asks backends, inside one event loop, until it is closed."""

    def __init__(self, *, look_s: float = LOOK_S, canary_s: float = CANARY_S) -> None:
        self._look_s, self._canary_s = look_s, canary_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def look(self, address: Address) -> Look:
        """Ask for the list of models. Raises nothing for what a server may do."""
        try:
            status, headers, body = await self._ask(address, "GET", MODELS, None, self._look_s)
        except TimeoutError:
            return Look(kind="late", text=f"does not answer within {self._look_s:g} s")
        except aiohttp.ClientPayloadError:
            return Look(kind="gone", text="the connection ended before the answer")
        except (aiohttp.ClientConnectionError, OSError) as error:
            return Look(kind="gone", text=f"does not answer: {_reason(error)}")
        except (aiohttp.ClientError, ValueError):
            return Look(kind="other", text="answers what is not HTTP")
        return _look(status, headers, body)

    async def canary(self, address: Address, model: str | None, role: Role = "text") -> str | None:
        """Return what is wrong with the answer to the canary's question; None if nothing is. Raises Inconclusive."""
        talk = canary.conversation(model or "default", role)
        body = next(talk)
        while True:
            raw = msgspec.json.encode(body)
            try:
                status, _, said = await self._ask(address, "POST", canary.path(role), raw, self._canary_s)
            except TimeoutError:
                raise Inconclusive(f"answers no question within {self._canary_s:g} s") from None
            except (aiohttp.ClientError, OSError, ValueError):
                raise Inconclusive("did not answer a question") from None
            if status >= 500 or status in BUSY:
                raise Inconclusive(f"answers a question with HTTP status {status}")
            try:
                body = talk.send((status, said.decode("utf-8", "replace")))
            except StopIteration as end:
                fault: str | None = end.value
                return fault

    async def _ask(
        self, address: Address, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = dict(HEADERS)
        if address.key is not None:
            headers["Authorization"] = f"Bearer {address.key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_S, timeout_s))
        request = self._session.request(
            method, address.url + path, data=body, headers=headers, allow_redirects=False, timeout=timeout
        )
        async with request as response:
            raw = b""
            async for chunk in response.content.iter_any():
                raw += chunk
                if len(raw) > MAX_BYTES:
                    raise ValueError("the answer is too large")
            return response.status, response.headers, raw


def _reason(error: Exception) -> str:
    """Return why there is no connection; the client's own words name the address, and differ from time to time."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else "the connection ended before the answer"


class _Entry(Struct):
    id: str
    owned_by: Any = None
    root: Any = None  # of vLLM and of ours: names of one model have one root
    parent: Any = None  # of an adapter: the model that it belongs to
    aliases: Any = None  # of llama-server: its other names


class _List(Struct):
    data: Sequence[_Entry] | None = None


_decoder = msgspec.json.Decoder(_List)


def _aliases(entry: _Entry) -> list[str]:
    found = entry.aliases if isinstance(entry.aliases, list) else []
    return [name for name in found if isinstance(name, str)]


def _look(status: int, headers: Mapping[str, str], body: bytes) -> Look:
    """Return what an answer to GET /v1/models says."""
    router = headers.get(ROUTER_HEADER)
    if status in (401, 403):
        return Look(kind="keyless", text=f"refuses the key (HTTP status {status})", router=router)
    if status in (404, 405):  # it has no such list; requests will tell
        return Look(kind="listed", router=router)
    if status == 503 and b"oading" in body:  # llama-server: "Loading model"
        return Look(kind="loading", text="loads its model")
    if status != 200:
        return Look(kind="other", text=f"answers {MODELS} with HTTP status {status}", router=router)
    try:
        entries = _decoder.decode(body).data or ()
    except INVALID_JSON:
        return Look(kind="other", text=f"answers {MODELS} with what is no list of models", router=router)
    entries = sorted(entries, key=lambda entry: entry.parent is not None)  # adapters last
    roots = {str(entry.root or entry.id) for entry in entries if entry.parent is None}
    return Look(
        kind="listed",
        names=tuple(dict.fromkeys(name[:MAX_TEXT] for entry in entries for name in (entry.id, *_aliases(entry)))),
        num_models=len(roots),
        is_ours=any(entry.owned_by == "eyas" for entry in entries),
        router=router,
    )
