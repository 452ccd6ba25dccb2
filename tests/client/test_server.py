"""An endpoint's address and connections, and answers that are none."""

import asyncio
import gc
import json
from pathlib import Path

import pytest
from tests.client.support.asked import ask, chunk, raw_stream, run
from tests.router.support.rawserver import RawServer, handling
from tests.router.support.script import Script
from tests.router.support.scripted import ScriptedBackend, free_port

from eyas.base.errors import UserError
from eyas.base.serving.budgets import Budgets
from eyas.client import AsyncClient
from eyas.client.errors import Broken, Closed, Refused, TimedOut
from eyas.client.pieces import Content, Waiting


def idle_sockets():
    """Open sockets of this process."""
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("answer", [
    [b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"],
    [b"\x15\x03\x01\x00\x02\x02garbage\r\n\r\n"],
    [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: nonsense\r\n\r\n"],
])  # fmt: skip
def test_answers_that_are_none(answer):
    async def main():
        async with RawServer(answer).serving() as server, AsyncClient(server.url, model="m", max_tries=1) as client:
            got = await ask(client)
            assert type(got.error) is Broken and got.error.kind == "malformed"

    run(main())


@pytest.mark.parametrize(("said", "kind", "words"), [
    ({"error": {"message": "prompt of s3cret", "type": "invalid_request_error"}}, Refused, "prompt of ***"),
    ({"error": "no such model"}, Broken, "no such model"),
    ({"choices": [{"index": 0, "message": {"content": "a"}}]}, Broken, "a stream of events was asked for"),
    ([], Broken, "a stream of events was asked for"),
    (None, Broken, "a stream of events was asked for"),
])  # fmt: skip
def test_json_in_place_of_a_stream(said, kind, words):
    async def main():
        body = b"no json" if said is None else json.dumps(said).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        async with (
            RawServer([head, body]).serving() as server,
            AsyncClient(server.url, api_key="s3cret", model="m", max_tries=1) as client,
        ):
            got = await ask(client)
            assert type(got.error) is kind and words in str(got.error)

    run(main())


def test_json_that_does_not_end_has_the_budget_of_the_prompt():
    async def main():
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        budgets = Budgets(prefill_s=0.3)
        async with (
            RawServer([head, b"{"], pause_s=0.5).serving() as server,
            AsyncClient(server.url, model="m", budgets=budgets) as client,
        ):
            got = await ask(client)
            assert type(got.error) is TimedOut and 0.29 < got.seconds < 0.3 + 0.5

    run(main())


def test_no_connection():
    async def main():
        async with AsyncClient(f"http://127.0.0.1:{free_port()}", model="m", max_tries=2) as client:
            got = await ask(client)
            assert type(got.error) is Broken and got.error.kind == "refused" and "start the server" in str(got.error)
            assert len(got.waits) == 1 and client.breaker.failures == 2

    run(main())


def test_connections_are_used_again_and_closed_at_the_end():
    async def main():
        gc.collect()
        before = idle_sockets()
        ports = set()

        async def handle(reader, writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
                await reader.readexactly(int(size.split(b":")[1]))
                ports.add(writer.get_extra_info("peername")[1])
                body = chunk(content="a") + chunk("stop") + b"data: [DONE]\n\n"
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
                )
                writer.write(body)

        async with handling(handle) as port, AsyncClient(f"http://127.0.0.1:{port}", model="m") as client:
            for _ in range(5):
                assert (await ask(client)).text == "a"
            assert len(ports) == 1
        await asyncio.sleep(0.05)
        assert idle_sockets() == before

    run(main())


def test_a_server_that_does_not_count_is_asked_without():
    async def main():
        asked = []

        async def handle(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
            body = await reader.readexactly(int(size.split(b":")[1]))
            asked.append(b"stream_options" in body)
            if asked[-1]:
                said = b'{"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}'
                writer.write(
                    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(said) + said
                )
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
                writer.write(chunk(content="a") + chunk("stop"))

        async with (
            handling(handle) as port,
            AsyncClient(f"http://127.0.0.1:{port}/v1", model="m", max_tries=1) as client,
        ):
            for _ in range(2):
                got = await ask(client)
                assert got.text == "a" and got.end.usage is None and got.end.finish_reason == "stop"
            assert asked == [True, False, False]

    run(main())


@pytest.mark.parametrize("url", [
    "", "127.0.0.1:8000", "ftp://x", "http://", "/v1", "http://[::1", "http://h:99999", "http://h:port", "http://h:0",
    "http://.:1", "http://" + "h" * 64, "http://\u2100", "http://h/v1?key=s3cret", "http://h/#v1",
])  # fmt: skip
def test_an_address_that_is_none(url):
    with pytest.raises(UserError, match="base_url must be") as caught:
        AsyncClient(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX-Y: z", "\u00fc", "\0"])
def test_a_key_that_no_header_takes(key):
    with pytest.raises(UserError, match="api_key") as caught:
        AsyncClient("http://127.0.0.1:1", api_key=key)
    assert key not in str(caught.value)


def test_a_password_in_an_address_is_not_shown():
    async def main():
        async with AsyncClient(f"http://me:s3cret@127.0.0.1:{free_port()}/v1", model="m", max_tries=1) as client:
            got = await ask(client)
            assert "s3cret" not in str(got.error) and "s3cret" not in client.name

    run(main())
    with pytest.raises(UserError, match="one of them"):
        AsyncClient("http://me:s3cret@127.0.0.1", api_key="key")
    with pytest.raises(UserError) as caught:
        AsyncClient("ftp://me:s3cret@127.0.0.1")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("when", ["asking", "pausing", "answering"])
def test_a_client_that_is_closed_asks_nobody(when):
    async def main():
        gc.collect()
        before = idle_sockets()
        script = {"asking": Script(before_s=9), "pausing": Script(status=429, retry_after="0.3"),
                  "answering": Script(mark="m1", pieces=99, between_s=0.05)}[when]  # fmt: skip
        async with ScriptedBackend(script=script).serving() as backend, ScriptedBackend().serving() as other:
            client = AsyncClient(backend.url, model="scripted", fallbacks=[AsyncClient(other.url, model="scripted")])
            seen = asyncio.Event()

            async def read():
                async for piece in client.stream("Hi"):
                    if isinstance(piece, Waiting | Content):
                        seen.set()

            reading = asyncio.create_task(read())
            while not (backend.asked if when == "asking" else seen.is_set()):
                await asyncio.sleep(0.01)
            await client.close()
            with pytest.raises(Closed) as caught:
                await reading
            assert bool(caught.value.text) == (when == "answering")
            assert client.breaker.failures == 0 and len(backend.asked) == 1 and not other.asked
            await asyncio.sleep(0.05)
            while backend.num_running():
                await asyncio.sleep(0.01)
            backend.script = Script(mark="m1")
            assert (await ask(client)).error is None  # it may be used again
            await client.close()
        await asyncio.sleep(0.05)
        assert idle_sockets() == before

    run(main())


def test_all_are_closed_though_the_task_is_cancelled_while_it_closes():
    async def main():
        gc.collect()
        before = idle_sockets()
        async with ScriptedBackend(script=Script(mark="m1")).serving() as backend:
            clients = [AsyncClient(backend.url, model="m") for _ in range(3)]

            async def use():
                async with AsyncClient(backend.url, model="m", fallbacks=clients):
                    for client in clients:
                        await ask(client)
                    asyncio.current_task().cancel()

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(use())
            assert [client._server._session for client in clients] == [None] * 3
        await asyncio.sleep(0.05)
        assert idle_sockets() == before

    run(main())


def test_a_client_outlives_its_loop_but_has_one_at_a_time():
    client = AsyncClient("http://127.0.0.1:1", model="m", max_tries=1)

    async def once():
        async with raw_stream(chunk("stop", content="a"), b"data: [DONE]\n\n") as server:
            client._server.url = f"{server.url}/v1"
            return await ask(client)

    async def elsewhere():
        async with client:
            await once()
            with pytest.raises(UserError, match="two event loops"):
                await asyncio.to_thread(asyncio.run, once())
            assert (await once()).text == "a"

    run(once())
    assert run(once()).text == "a"
    run(elsewhere())
    run(client.close())
