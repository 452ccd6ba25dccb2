"""Starting and stopping through the API of a whole router in front of scripted backends; what the metrics then say."""

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx
import uvicorn
from tests.router.support.operated import SERVER_KEY
from tests.router.support.relayed import settings_of
from tests.router.support.scripted import ScriptedBackend

from eyas.gateway.operation.connections import uvicorn_options
from eyas.router.app import Router
from eyas.router.backends.watcher import Pace
from eyas.router.settings.schema import ServerSettings

BACKEND_KEY = "sk-of-a-backend-1618033988"
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
FAST = Pace(look_s=0.05, soon_s=0.02, retry_s=0.05, drain_s=1.0, poll_s=0.02)


@asynccontextmanager
async def whole_router(settings, home):
    """A client of a whole router on a free port, which has the key."""
    router = Router(settings, environ={"EYAS_HOME": str(home)}, pace=FAST)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(router.app, **uvicorn_options() | {"timeout_graceful_shutdown": 1}))
    server.install_signal_handlers = lambda: None
    async with router.running():
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            headers = {"authorization": f"Bearer {SERVER_KEY}"}
            async with httpx.AsyncClient(base_url=url, timeout=20, headers=headers) as http:
                yield http
        finally:
            router.drain()
            server.should_exit = True
            await serving
            listener.close()


async def until(http, name, state):
    async with asyncio.timeout(20):
        while True:
            for one in (await http.get("/router/status")).json()["backends"]:
                if one["name"] == name and one["state"] == state:
                    return one
            await asyncio.sleep(0.02)


def test_a_backend_is_stopped_and_started_again(tmp_path):
    async def main():
        first, second = ScriptedBackend("a", key=BACKEND_KEY), ScriptedBackend("b")
        async with first.serving(), second.serving():
            settings = settings_of([first, second], server=ServerSettings(api_key=SERVER_KEY))
            async with whole_router(settings, tmp_path) as http:
                await until(http, "a", "ready")
                await until(http, "b", "ready")
                answers = [await http.post("/v1/chat/completions", json=BODY)]
                assert (await http.post("/router/backends/a/stop")).status_code == 202
                stopped = await until(http, "a", "out")
                answers.append(await http.post("/v1/chat/completions", json=BODY))
                page = (await http.get("/metrics")).text
                assert (await http.post("/router/backends/a/start")).status_code == 202
                await until(http, "a", "ready")
                answers.append(await http.post("/v1/chat/completions", json=BODY))
                seen = [(await http.get(path)).text for path in ("/", "/router/status", "/metrics", "/nothing")]
                return answers, stopped, page, "".join(seen)

    answers, stopped, page, seen = asyncio.run(main())
    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.headers["x-eyas-backend"] for answer in answers] == ["a", "b", "a"]
    assert stopped["cause"] == "stopped" and "person" in stopped["reason"]
    assert 'eyas:router_backend_out{backend="a",cause="stopped"} 1.0' in page
    assert 'eyas:router_requests_total{path="/v1/chat/completions",status="200"} 2.0' in page
    assert BACKEND_KEY not in seen and SERVER_KEY not in seen
