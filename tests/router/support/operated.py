"""A router's operation and page on a real server with the real manager, and no relay: the tests report for it."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import httpx
import uvicorn

from eyas.base.errors import UserError
from eyas.gateway.app import DIALECTS
from eyas.gateway.http.bare_app import bare_app
from eyas.gateway.operation.auth import digests
from eyas.gateway.operation.connections import uvicorn_options
from eyas.gateway.operation.gates import Access
from eyas.router.manager.condition import Condition
from eyas.router.manager.manager import Manager
from eyas.router.manager.visit import Go, Wanted
from eyas.router.memory.status import PoolStatus
from eyas.router.operation.operation import Operation
from eyas.router.page import files
from eyas.router.settings.schema import BackendSettings, ModelSettings, RouterSettings, RouteSettings, ServerSettings

__all__ = [
    "BACKEND_KEY",
    "SERVER_KEY",
    "InThread",
    "Operated",
    "at_backend",
    "in_thread",
    "operated",
    "operated_in_thread",
    "small_settings",
]

BACKEND_KEY = "sk-of-a-backend-3141592653"
SERVER_KEY = "sk-of-the-router-2718281828"


def small_settings(api_key: str | None = None) -> RouterSettings:
    """Three backends of two models, the second the twin of the first."""
    return RouterSettings(
        backends=(
            BackendSettings(name="spark", url="http://user:word@127.0.0.1:9/", key=BACKEND_KEY, concurrency=4),
            BackendSettings(name="plain", url="http://127.0.0.1:9", twin_of="spark", concurrency=4),
            BackendSettings(name="small", url="http://127.0.0.1:10", model="tiny", concurrency=1),
        ),
        models=(
            ModelSettings(name="gpt-oss-120b", backends=("spark", "plain")),
            ModelSettings(name="gpt-oss-20b", backends=("small",)),
        ),
        routes=(
            RouteSettings(name="MATH", effort="high"),
            RouteSettings(name="SIMPLE_CODE", effort="low", model="gpt-oss-20b"),
        ),
        server=ServerSettings(api_key=api_key),
    )


@dataclass
class Ordered:
    """Control that keeps what it is asked for; "plain" cannot be stopped. `stand` is how the pools stand."""

    stand: tuple[PoolStatus, ...] = ()
    orders: list[tuple[str, str]] = field(default_factory=list)

    async def start(self, name: str) -> None:
        self.orders.append(("start", name))

    async def order(self, name: str, order: str) -> None:
        self.orders.append((order, name))

    def pools(self) -> tuple[PoolStatus, ...]:
        return self.stand

    async def stop(self, name: str) -> None:
        if name == "plain":
            raise UserError("plain is the last one that can answer")
        self.orders.append(("stop", name))


@dataclass
class Operated:
    url: str
    manager: Manager
    operation: Operation
    control: Ordered
    http: httpx.AsyncClient

    async def page(self) -> str:
        return (await self.http.get("/metrics")).text


async def at_backend(manager: Manager, model: str, backends: tuple[str, ...], **fields):
    """A visit that has a place at a backend, and the backend's name."""
    visit = manager.arrive(Wanted(model=model, backends=backends, **fields))
    async for news in visit.news():
        if isinstance(news, Go):
            return visit, news.backend
    raise AssertionError("no backend")


@asynccontextmanager
async def operated(
    settings: RouterSettings | None = None, *, ready: bool = True, pools: tuple[PoolStatus, ...] = ()
) -> AsyncIterator[Operated]:
    """Serve on a free port; `ready`: all backends are."""
    settings = settings or small_settings()
    manager, control = Manager(settings), Ordered(pools)
    access = Access(key_digests=digests(settings.server.api_key))
    operation = Operation(settings, snapshot=manager.snapshot, control=control, access=access, dialects=DIALECTS)
    manager.listeners.append(operation.happened)
    app = bare_app([*operation.routes(), *files.routes()], operation.lifespan)
    if ready:
        for backend in settings.backends:
            manager.report(backend.name, Condition(state="ready", model=backend.model or "gpt-oss"))
    listener = socket.create_server(("127.0.0.1", 0))
    options = uvicorn_options() | {"timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(operation.wrap(app), **options))
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            yield Operated(url, manager, operation, control, http)
    finally:
        operation.end_streams()
        server.should_exit = True
        await task
        manager.close()
        listener.close()


T = TypeVar("T")


@dataclass
class InThread(Generic[T]):
    """What a context gives, in a thread with a loop of its own, for tests with a browser."""

    one: T
    loop: asyncio.AbstractEventLoop

    def run(self, work, *arguments, **fields):
        """Call a function, or await a coroutine function, in the router's loop."""
        return self.begin(work, *arguments, **fields).result(20)

    def begin(self, work, *arguments, **fields) -> Future:
        """As `run`, but do not wait for it."""

        async def call():
            found = work(*arguments, **fields)
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(call(), self.loop)


@contextmanager
def in_thread(context: AbstractAsyncContextManager[T]) -> Iterator[InThread[T]]:
    """Be in a context beside a test without a loop."""
    found: list[InThread[T]] = []
    failures: list[BaseException] = []
    ready, over = threading.Event(), asyncio.Event()

    async def main() -> None:
        try:
            async with context as one:
                found.append(InThread(one, asyncio.get_running_loop()))
                ready.set()
                await over.wait()
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(20) and found, failures
    try:
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(over.set)
        thread.join(60)
        assert not thread.is_alive() and not failures, failures


def operated_in_thread(settings: RouterSettings | None = None, **options) -> AbstractContextManager[InThread[Operated]]:
    """Serve as `operated` does, beside a test without a loop."""
    return in_thread(operated(settings, **options))
