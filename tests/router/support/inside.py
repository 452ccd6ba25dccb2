"""A router inside the test's process: its manager can be reached, and its clock moved."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from eyas.gateway.operation.connections import ConnectionLimits, uvicorn_options
from eyas.router.app import create_app
from eyas.router.backends.backends import addresses
from eyas.router.manager.condition import Condition
from eyas.router.manager.happenings import Snapshot
from eyas.router.manager.manager import Manager
from eyas.router.settings.schema import BackendSettings, ModelSettings, RouterSettings
from eyas.router.upstream.upstream import Upstream

__all__ = ["Clock", "Inside", "router_inside", "settings_of"]


@dataclass
class Clock:
    """A clock that can be put forward."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class NoControl:
    """Starts and stops nothing."""

    async def start(self, name: str) -> None: ...

    async def order(self, name: str, order: str) -> None: ...

    def pools(self) -> tuple:
        return ()

    async def stop(self, name: str) -> None: ...


@dataclass
class Inside:
    """A running router."""

    url: str
    manager: Manager
    loop: asyncio.AbstractEventLoop = field(repr=False)

    def snapshot(self) -> Snapshot:
        async def take() -> Snapshot:
            return self.manager.snapshot()

        return asyncio.run_coroutine_threadsafe(take(), self.loop).result(20)


def settings_of(urls: Mapping[str, str], model: str, **rest: object) -> RouterSettings:
    """Settings of one model with these backends; `rest` is the same for all of them."""
    backends = tuple(BackendSettings(name=name, url=url, **rest) for name, url in urls.items())
    return RouterSettings(backends=backends, models=(ModelSettings(name=model, backends=tuple(urls)),), routes=())


@contextmanager
def router_inside(
    settings: RouterSettings, conditions: Mapping[str, Condition], now: Callable[[], float] = time.monotonic
) -> Iterator[Inside]:
    """Run a router whose backends are in these conditions: nobody watches them, and they are asked no canary."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    upstream = Upstream(addresses(settings))
    found: list[Inside] = []
    servers: list[uvicorn.Server] = []

    async def run() -> None:
        manager = Manager(settings, now=now)
        app, _ = create_app(settings, manager=manager, upstream=upstream, control=NoControl(), instance="inside")
        for name, condition in conditions.items():
            manager.report(name, condition)
        server = uvicorn.Server(
            uvicorn.Config(app, timeout_graceful_shutdown=1, **uvicorn_options(ConnectionLimits(probe_s=0.05)))
        )
        servers.append(server)
        found.append(Inside(url, manager, asyncio.get_running_loop()))
        async with upstream:
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    while not (servers and servers[0].started):
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield found[0]
    finally:
        servers[0].should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()
