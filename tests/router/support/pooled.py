"""A router in the test's loop whose backends are fake engines with real ballast, in a pool of a size that is given."""

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvicorn
from tests.fleet.support.lab import engine, free_port, make_plan, write_plan
from tests.router.support.watched import FAST

from eyas.gateway.operation.connections import uvicorn_options
from eyas.recipes.plan import Launch
from eyas.router.app import Router
from eyas.router.backends.orchestrator import Times
from eyas.router.manager.happenings import Happening
from eyas.router.settings.reader import examine

__all__ = ["MIB", "QUICK", "Ballast", "Pooled", "pooled", "write_file"]

MIB = 1 << 20
QUICK = Times(calm_s=0.2, watched_s=0.1, returning_s=0.05, failed_s=1.0)
PATIENCE_S = 60


@dataclass(frozen=True)
class Ballast:
    """A fake engine that holds so many MiB, and declares `declared` times that. A process of Python takes 12 more."""

    name: str
    mib: int
    peak: int = 0
    load_s: float = 0.3
    answer_s: float = 0.0
    end_s: float = 0.0  # that its processes take to end
    declared: float = 1.0
    gpu_mib: int = 0  # that it holds of a GPU, and declares instead
    more: dict[str, Any] = field(default_factory=dict)  # keys of its entry in the router's file


def write_file(folder: Path, engines: list[Ballast], size_mib: int | None, journal: Path, **rest: Any) -> Path:
    """Write plans and a router's file; return the file. Each engine has a model of its name.

    Without a size the pool is the first GPU.
    """
    backends = {}
    for one in engines:
        port = free_port()
        argv = engine(
            *("--port", port, "--journal", journal, "--ballast", one.mib, "--peak", one.peak),
            *("--slow", one.load_s, "--answer-s", one.answer_s, "--gpu-mib", one.gpu_mib, "--end-s", one.end_s),
            name=one.name,
        )
        plan = make_plan(folder / one.name, port, [Launch(name="server", argv=argv)], name=one.name)
        if size_mib is None:
            hardware = msgspec.structs.replace(plan.box.hardware, compute_capability=_capability())
            plan = msgspec.structs.replace(plan, box=msgspec.structs.replace(plan.box, hardware=hardware))
        choice = msgspec.structs.replace(plan.choice, concurrency=8, role=one.more.get("role", "text"))
        file = write_plan(folder / f"{one.name}.yaml", msgspec.structs.replace(plan, choice=choice))
        steady = int((one.gpu_mib or one.mib + 12) * one.declared)
        peak = max(steady, 0 if one.gpu_mib else int((max(one.mib, one.peak) + 12) * one.declared))
        backends[one.name] = {"plan": str(file), "memory": f"{steady}MiB", "peak": f"{peak}MiB"} | one.more
    content = {
        "server": {"port": free_port()},
        "pools": {
            "box": {"kind": "gpu", "size": "79GiB"} if size_mib is None else {"kind": "size", "size": f"{size_mib}MiB"}
        },
        "backends": backends,
        "models": {one.name: [one.name] for one in engines},
        "budgets": {"queue": 600, "prefill": 600},
    }
    path = folder / "router.yaml"
    path.write_bytes(msgspec.json.encode(content | rest))
    return path


def _capability() -> str:
    argv = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", "0"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Pooled:
    """A running router and all that happened."""

    url: str
    router: Router
    session: aiohttp.ClientSession
    happenings: list[Happening] = field(default_factory=list)

    async def ask(self, model: str) -> tuple[int, str]:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.text()

    def state(self, name: str) -> str:
        return self.router.manager.condition(name).state

    def reason(self, name: str) -> str:
        return self.router.manager.condition(name).reason

    def loaded(self) -> set[str]:
        return {one.name for one in self.router.settings.backends if self.state(one.name) == "ready"}

    async def until(self, condition: Any) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, self.told()
            await asyncio.sleep(0.02)

    def told(self) -> list[str]:
        """What was said of memory, in order."""
        return [f"{one.memory} {one.backend or '-'}: {one.text}" for one in self.happenings if one.kind == "memory"]

    def notes(self, kind: str) -> list[str | None]:
        return [one.backend for one in self.happenings if one.kind == "memory" and one.memory == kind]


@asynccontextmanager
async def pooled(path: Path, times: Times = QUICK) -> AsyncIterator[Pooled]:
    """Run the router of a file in this loop."""
    found = examine(path, {})
    assert found.problems == (), found.problems
    router = Router(found.settings, pace=FAST, times=times)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(router.app, lifespan="off", timeout_graceful_shutdown=1, **uvicorn_options())
    )
    server.install_signal_handlers = lambda: None
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        seen = Pooled(url, router, session)
        router.manager.listeners.append(seen.happenings.append)
        router.orchestrator.listeners.append(seen.happenings.append)
        async with router.running():
            serving = asyncio.create_task(server.serve([listener]))
            try:
                yield seen
            finally:
                server.should_exit = True
                await serving
                listener.close()
