"""The relay as an ASGI app: its paths, and no others, whatever the backends have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from eyas.gateway.anthropic.routes import HELLO_PATH
from eyas.gateway.http.intake import Intake
from eyas.gateway.http.outcome import CLIENT_LEFT
from eyas.gateway.operation.auth import digests
from eyas.router.manager.manager import Manager
from eyas.router.relay.client import Client, failure_for
from eyas.router.relay.exchange import Exchange
from eyas.router.relay.lookups import (
    COUNT_PATH,
    TOKENIZE_PATH,
    answer_count,
    answer_json,
    answer_stored,
    answer_tokens,
)
from eyas.router.relay.names import Names
from eyas.router.relay.outcome import Listener, Outcome
from eyas.router.relay.shared import Shared
from eyas.router.relay.sight import describing
from eyas.router.relay.stored import is_response_id
from eyas.router.routes.choosing import Routes
from eyas.router.settings.schema import RouterSettings
from eyas.router.sidecars.roles import sidecar_of
from eyas.router.upstream.upstream import Upstream

__all__ = ["PATHS", "Relay"]

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"})
MODELS, ONE_MODEL = "/v1/models", "/v1/models/"
ONE_RESPONSE = "/v1/responses/"
STORED = "/v1/responses/{id}"
PATHS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(sorted(GENERATING), ("POST",)),
    COUNT_PATH: ("POST",),
    TOKENIZE_PATH: ("POST",),
    STORED: ("GET", "DELETE"),
    MODELS: ("GET", "HEAD"),
    ONE_MODEL + "{id}": ("GET", "HEAD"),
    HELLO_PATH: ("GET", "HEAD"),
}


class Relay:
    """Answers requests to PATHS. Around it stand keys and limits (`behind_gates`), which find the format of errors.

    `listeners` hear of each request when it is over, and of each loop that the guard finds. The connections of
    `upstream` are its owner's, to be started and closed.
    """

    def __init__(
        self,
        settings: RouterSettings,
        *,
        manager: Manager,
        upstream: Upstream,
        routes: Routes,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._shared = Shared(
            settings=settings,
            manager=manager,
            upstream=upstream,
            routes=routes,
            names=Names(settings, int(now())),
            intake=Intake(settings.server.max_body),
            vision=sidecar_of(settings, "vision"),
            descriptions=describing(settings, manager, upstream),
            num_keys=len(digests(settings.server.api_key)),
        )

    @property
    def listeners(self) -> list[Listener]:
        return self._shared.listeners

    @staticmethod
    def owns(path: str) -> bool:
        """Return whether requests to `path` are the relay's to answer, if only with 404."""
        return path.startswith("/v1/") or path in ("/v1", HELLO_PATH, TOKENIZE_PATH)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        path, method = scope["path"], scope["method"]
        if path in GENERATING and method == "POST" and _is_plain(scope):
            await Exchange(self._shared, scope, receive, send, path).run()
            return
        loop = asyncio.get_running_loop()
        arrived, client = loop.time(), Client(scope, send, loop)
        backend, error = None, None
        pattern = _pattern_of(path)
        try:
            _check(scope, pattern)
            if pattern == STORED:
                backend = await answer_stored(self._shared, scope, client, method, path.removeprefix(ONE_RESPONSE))
            else:
                await self._look_up(path, scope, receive, client)
        except ClientDisconnect:
            client.status = CLIENT_LEFT
        except Exception as wrong:
            error, retry_after_s = failure_for(wrong)
            await client.fail(error, retry_after_s=retry_after_s)
        if pattern in (STORED, COUNT_PATH, TOKENIZE_PATH):
            self._shared.tell(
                Outcome(
                    request_id=scope["state"]["request_id"],
                    path=pattern,
                    status=client.status or CLIENT_LEFT,
                    backend=backend,
                    num_asked=int(backend is not None),
                    e2e_s=loop.time() - arrived,
                    error=error.message if error is not None else None,
                )
            )

    async def _look_up(self, path: str, scope: Scope, receive: Receive, client: Client) -> None:
        names = self._shared.names
        if path == COUNT_PATH:
            await answer_count(self._shared, scope, receive, client)
        elif path == TOKENIZE_PATH:
            await answer_tokens(self._shared, scope, receive, client)
        elif path == MODELS:
            await answer_json(client, names.listed())
        elif path == HELLO_PATH:
            await answer_json(client, {"message": "hello"})
        else:
            await answer_json(client, names.entry(path.removeprefix(ONE_MODEL)))


def _pattern_of(path: str) -> str | None:
    """Return which of PATHS a path is; None if it is none of them."""
    if path in PATHS:
        return path if "{" not in path else None
    if path.startswith(ONE_MODEL):
        return ONE_MODEL + "{id}"
    if path.startswith(ONE_RESPONSE) and is_response_id(path.removeprefix(ONE_RESPONSE)):
        return STORED
    return None


def _check(scope: Scope, pattern: str | None) -> None:
    """Raises HTTPException for a path or a method that is not there. Names of models alone may be encoded."""
    named = f"{scope['method']} {scope['path'][:200]}"
    if pattern is None or not (_is_plain(scope) or pattern.startswith(ONE_MODEL)):
        raise HTTPException(404, f"Not Found: {named}")
    if scope["method"] not in PATHS[pattern]:
        raise HTTPException(405, f"Method Not Allowed: {named}")


def _is_plain(scope: Scope) -> bool:
    """Return whether the path stands in the request as it is read, without encoded characters."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return b"%" not in raw
