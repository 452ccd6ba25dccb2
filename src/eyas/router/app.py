"""Puts a router together: the manager between relay and backends, operation and page around them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.base.settings.home import home
from eyas.gateway.app import DIALECTS
from eyas.gateway.http.bare_app import bare_app
from eyas.gateway.operation.auth import digests, origins
from eyas.gateway.operation.gates import Access
from eyas.gateway.server.dialect import REQUEST_ID_HEADER
from eyas.gateway.server.hosts import hosts_of
from eyas.router.backends.asking import MODELS, ROUTER_HEADER
from eyas.router.backends.backends import Backends, addresses
from eyas.router.backends.control import Controls
from eyas.router.backends.orchestrator import Orchestrator, Times
from eyas.router.backends.watcher import Pace
from eyas.router.manager.condition import Condition
from eyas.router.manager.manager import Manager
from eyas.router.operation.operation import Operation
from eyas.router.operation.status import Control
from eyas.router.page import files
from eyas.router.relay.asking import ask_resident
from eyas.router.relay.relay import Relay
from eyas.router.routes.choosing import Routes
from eyas.router.settings.schema import RouterSettings, ServerSettings
from eyas.router.upstream.upstream import Upstream

__all__ = ["Router", "access_of", "create_app"]

EXPOSED = (REQUEST_ID_HEADER, "x-eyas-backend", "x-eyas-images", "x-eyas-route", "x-eyas-sidecar")
LAST_WORDS_S = 0.2  # for errors to those whose backends were let go


def access_of(server: ServerSettings) -> Access:
    """Return who may ask a router, and how much. Raises UserError."""
    keys = digests(server.api_key)
    return Access(
        key_digests=keys,
        hosts=hosts_of(server.host, server.allowed_hosts, has_keys=bool(keys)),
        cors_origins=origins(server.cors),
        max_body=server.max_body,
        exposed=EXPOSED,
    )


def create_app(
    settings: RouterSettings, *, manager: Manager, upstream: Upstream, control: Control, instance: str
) -> tuple[ASGIApp, Operation]:
    """Return the app, and its operation. `upstream` must be started before the first request.

    `instance` stands in answers about models, so that a router knows itself among its backends.
    """
    relay = Relay(
        settings,
        manager=manager,
        upstream=upstream,
        routes=Routes(settings, ask_resident(settings, manager, upstream)),
    )
    operation = Operation(
        settings,
        snapshot=manager.snapshot,
        control=control,
        access=access_of(settings.server),
        dialects=DIALECTS,
    )
    relay.listeners.append(operation.record)
    manager.listeners.append(operation.happened)
    rest = bare_app([*operation.routes(), *files.routes()], operation.lifespan)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and relay.owns(scope["path"]):
            await relay(scope, receive, send)
        else:
            await rest(scope, receive, send)

    return _signed(operation.wrap(app), instance), operation


def _signed(app: ASGIApp, instance: str) -> ASGIApp:
    """Return `app` with the router's id in answers about models, refusals too."""

    async def signed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != MODELS:
            return await app(scope, receive, send)

        async def sign(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[ROUTER_HEADER] = instance
            await send(message)

        await app(scope, receive, sign)

    return signed


class Router:
    """A whole router. Made before its event loop runs, since that takes the plans of its file. Raises UserError.

    `running` starts it, and ends what is its own; engines that it has started go on.
    """

    def __init__(
        self,
        settings: RouterSettings,
        *,
        environ: Mapping[str, str] | None = None,
        pace: Pace | None = None,
        times: Times | None = None,
    ) -> None:
        self.settings = settings
        self._environ = os.environ if environ is None else environ
        self.manager = Manager(settings)
        self.upstream = Upstream(addresses(settings))
        self.backends = Backends(
            settings,
            environ=self._environ,
            report=self._report,
            num_in_flight=self._num_at,
            pace=pace,
        )
        self.manager.listeners.append(self.backends.happened)
        folder = home(self._environ) if settings.pools else Path()  # a router of urls keeps nothing
        self.orchestrator = Orchestrator(settings, self.backends, self.manager, folder, times=times)
        self.manager.listeners.append(self.orchestrator.happened)
        self.app, self.operation = create_app(
            settings,
            manager=self.manager,
            upstream=self.upstream,
            control=Controls(self.backends, self.orchestrator),
            instance=self.backends.instance,
        )
        self.orchestrator.listeners.append(self.operation.happened)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Router, None]:
        """Watch the backends, and have connections to them."""
        try:
            async with self.upstream:
                self.backends.run()
                self.orchestrator.run()
                yield self
        finally:
            self.manager.close()
            self.operation.end_streams()
            await self.orchestrator.close()
            await self.backends.close()

    def num_in_flight(self) -> int:
        """Return how many requests are being answered."""
        return sum(one.in_flight for one in self.manager.snapshot().backends.values())

    def drain(self) -> None:
        """Refuse all requests that wait or come; answers go on."""
        self.manager.close()
        self.operation.end_streams()

    async def end(self) -> None:
        """End the answers that are still running: their clients get an error."""
        await self.upstream.close()
        await asyncio.sleep(LAST_WORDS_S)

    def _report(self, backend: str, condition: Condition) -> None:
        self.manager.report(backend, condition)
        self.orchestrator.seen(backend, condition)

    def _num_at(self, backend: str) -> int:
        return self.manager.snapshot().backends[backend].in_flight
