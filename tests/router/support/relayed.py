"""A relay on a real server in the test's own loop, with the real manager, in front of scripted backends."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import uvicorn
from tests.router.support.scripted import ScriptedBackend

from eyas.base.serving.budgets import Budgets
from eyas.gateway.app import DIALECTS
from eyas.gateway.operation.auth import digests
from eyas.gateway.operation.connections import ConnectionLimits, uvicorn_options
from eyas.gateway.operation.gates import Access, behind_gates
from eyas.gateway.server.dialect import Dialects
from eyas.router.manager.condition import Condition
from eyas.router.manager.happenings import Happening
from eyas.router.manager.manager import Manager
from eyas.router.relay.asking import ask_resident
from eyas.router.relay.outcome import Outcome, Trip
from eyas.router.relay.relay import Relay
from eyas.router.routes.choosing import Routes
from eyas.router.settings.schema import BackendSettings, ModelSettings, RouterSettings
from eyas.router.upstream.address import Address
from eyas.router.upstream.upstream import Upstream

__all__ = ["Relayed", "relayed", "settings_of"]


@dataclass
class Relayed:
    """A running relay, and all that it and its manager have told."""

    url: str
    session: aiohttp.ClientSession
    manager: Manager
    upstream: Upstream
    news: list[Outcome | Trip] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Outcome]:
        return [one for one in self.news if isinstance(one, Outcome)]

    async def reported(self, number: int) -> list[Outcome]:
        """The outcomes, once there are so many: they are told a moment after the answers."""
        async with asyncio.timeout(5):
            while len(self.outcomes) < number:
                await asyncio.sleep(0.005)
        return self.outcomes

    def in_flight(self) -> int:
        return sum(one.in_flight for one in self.manager.snapshot().backends.values())

    def failures(self) -> list[tuple[str | None, str | None]]:
        return [(one.backend, one.failure) for one in self.happenings if one.kind == "failed"]


def settings_of(
    backends: Sequence[ScriptedBackend], *, budgets: Budgets | None = None, **fields: Any
) -> RouterSettings:
    """Return settings with one model, `scripted`, on these backends in order."""
    budgets = budgets or Budgets(queue_s=5, prefill_s=5, stall_s=5)
    return replace(
        RouterSettings(
            backends=tuple(
                BackendSettings(name=one.name, url=one.url, key=one.key, budgets=budgets) for one in backends
            ),
            models=(ModelSettings(name="scripted", backends=tuple(one.name for one in backends)),),
            routes=(),
        ),
        **fields,
    )


@asynccontextmanager
async def relayed(
    *backends: ScriptedBackend, settings: RouterSettings | None = None, **fields: Any
) -> AsyncIterator[Relayed]:
    """Serve a relay in front of these backends, which serve already, until the context ends."""
    settings = settings or settings_of(backends, **fields)
    manager = Manager(settings)
    addresses = {
        one.name: Address(name=one.name, url=one.url or "", key=one.key, model=one.model) for one in settings.backends
    }
    ours = {one.name: one.is_ours for one in backends}
    for one in settings.backends:
        manager.report(one.name, Condition(state="ready", is_ours=ours.get(one.name, False)))
    async with Upstream(addresses) as upstream, aiohttp.ClientSession() as session:
        routes = Routes(settings, ask_resident(settings, manager, upstream))
        relay = Relay(settings, manager=manager, upstream=upstream, routes=routes)
        access = Access(key_digests=digests(settings.server.api_key), max_body=settings.server.max_body)
        app = behind_gates(relay, access, dialects=Dialects(DIALECTS), on_status=lambda status: None)
        listener = socket.create_server(("127.0.0.1", 0))
        options = uvicorn_options(ConnectionLimits(probe_s=0.05)) | {"timeout_graceful_shutdown": 1}
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", **options))
        server.install_signal_handlers = lambda: None
        serving = asyncio.create_task(server.serve([listener]))
        found = Relayed(f"http://127.0.0.1:{listener.getsockname()[1]}", session, manager, upstream)
        relay.listeners.append(found.news.append)
        manager.listeners.append(found.happenings.append)
        try:
            while not server.started:
                await asyncio.sleep(0.005)
            yield found
        finally:
            server.should_exit = True
            await serving
            manager.close()
            listener.close()
