"""What large requests wait for: threads, a bound on the queue for them, and nobody waits for a client that left."""

import asyncio
import gc
import http.client
import json
import threading

import httpx
import pytest
from starlette.requests import Request
from tests.gateway.support.gateway import eventually

from eyas.base.errors import Busy, InvalidRequest
from eyas.gateway.http import workers as module
from eyas.gateway.http.stream import ClientGone
from eyas.gateway.http.workers import HUGE, LARGE, Workers


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setattr(module, "NUM_THREADS", 1)


class Client:
    """A request whose client stays until `left` is set."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.http = Request({"type": "http"}, self._receive)

    async def _receive(self) -> dict:
        await self.left.wait()
        return {"type": "http.disconnect"}


class Gate:
    """Work that tells who did it, once it is open."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.done: list[object] = []

    def work(self, name: object):
        def wait() -> object:
            assert self.is_open.wait(20)
            self.done.append(name)
            return name

        return wait


async def all_begun() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_small_work_is_done_at_once_and_large_in_a_thread():
    async def run() -> list[str]:
        workers = Workers()
        return [await workers.run(Client().http, size, lambda: threading.current_thread().name) for size in (1, LARGE)]

    here, there = asyncio.run(run())
    assert here == threading.current_thread().name and there.startswith("eyas-worker")


def test_what_goes_wrong_in_a_thread_is_raised():
    def work() -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest, match="no"):
        asyncio.run(Workers().run(Client().http, LARGE, work))


def test_beyond_the_bound_nobody_waits(one_thread, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 2)

    async def run() -> list[object]:
        workers, gate = Workers(), Gate()
        tasks = [asyncio.create_task(workers.run(Client().http, LARGE, gate.work(name))) for name in range(3)]
        await all_begun()  # one in the thread, two wait
        with pytest.raises(Busy):
            await workers.run(Client().http, LARGE, gate.work("refused"))
        gate.is_open.set()
        results = await asyncio.gather(*tasks)
        return [*results, await workers.run(Client().http, LARGE, gate.work("later"))]

    assert asyncio.run(run()) == [0, 1, 2, "later"]


def test_huge_ones_are_done_one_after_another_and_others_beside_them():
    async def run() -> None:
        workers, gate, open_gate = Workers(), Gate(), Gate()
        open_gate.is_open.set()
        huge = [asyncio.create_task(workers.run(Client().http, HUGE, gate.work(number))) for number in range(3)]
        await all_begun()
        assert await workers.run(Client().http, HUGE - 1, open_gate.work("other")) == "other"
        assert workers.num_waiting == 2 and not gate.done
        huge[1].cancel()
        gate.is_open.set()
        assert await asyncio.gather(huge[0], huge[2]) == [0, 2] and gate.done == [0, 2]
        assert await workers.run(Client().http, HUGE, gate.work("later")) == "later"

    asyncio.run(run())


def test_nothing_is_done_for_a_client_that_left_while_it_waited(one_thread):
    async def run() -> list[object]:
        workers, gate = Workers(), Gate()
        clients = [Client() for _ in range(3)]
        tasks = [asyncio.create_task(workers.run(one.http, LARGE, gate.work(i))) for i, one in enumerate(clients)]
        await all_begun()
        for client in clients[:2]:  # the first has begun already
            client.left.set()
        for task in tasks[:2]:
            with pytest.raises(ClientGone):
                await task
        await asyncio.sleep(0.05)
        assert not tasks[2].done()  # the thread still works for the first
        gate.is_open.set()
        await tasks[2]
        return gate.done

    assert asyncio.run(run()) == [0, 2]


def test_what_is_refused_after_its_client_has_left_is_no_error_of_ours(one_thread):
    """asyncio reports an exception that is never looked at, when its future is collected."""
    gate, reported = Gate(), []

    def refuse() -> None:
        assert gate.is_open.wait(20)
        raise InvalidRequest("too long")

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        workers, client = Workers(), Client()
        task = asyncio.create_task(workers.run(client.http, LARGE, refuse))
        await all_begun()
        client.left.set()
        with pytest.raises(ClientGone):
            await task
        gate.is_open.set()
        await workers.run(Client().http, LARGE, gate.work("next"))

    asyncio.run(run())
    gc.collect()
    assert reported == [] and gate.done == ["next"]


def test_a_server_that_has_too_much_to_read_says_429(serve, codec, monkeypatch):
    """Two hang while they are tokenized, a third waits for their threads until it leaves, and others may wait then."""
    monkeypatch.setattr(module, "NUM_THREADS", 2)
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    gate, encode, begun, made = threading.Event(), type(codec).encode_within, [], []
    init = Workers.__init__
    monkeypatch.setattr(Workers, "__init__", lambda self: made.append(self) or init(self))

    def slow(self, text: str, limit: int) -> list[int]:
        if len(text) > LARGE:
            begun.append(text[0])
            assert gate.wait(20)
        return encode(self, text, limit)

    monkeypatch.setattr(type(codec), "encode_within", slow)
    server = serve()

    def send(letter: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
        body, headers = json.dumps({"prompt": letter * 2 * LARGE}), {"content-type": "application/json"}
        connection.request("POST", "/tokenize", body, headers)
        return connection

    def is_refused() -> bool:
        try:
            answer = httpx.post(f"{server.url}/tokenize", json={"prompt": "d" * 2 * LARGE}, timeout=1)
        except httpx.ReadTimeout:  # it came to wait itself
            return False
        return answer.status_code == 429 and answer.json()["error"]["code"] == "queue_full"

    connections = [send("a"), send("b")]
    assert eventually(lambda: len(begun) == 2)
    leaver = send("c")
    assert eventually(lambda: made[0].num_waiting == 1)
    assert is_refused()
    leaver.close()
    assert eventually(lambda: not is_refused())
    gate.set()
    assert [connection.getresponse().status for connection in connections] == [200, 200]
    for connection in connections:
        connection.close()
    assert {"a", "b"} <= set(begun) <= {"a", "b", "d"}  # one that came to wait may begin before its leaving is seen
