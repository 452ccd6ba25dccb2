"""What passes from clients to backends and back, and which paths there are: nothing else, whatever a backend has."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import pytest
from tests.router.support.asking import PATHS, ask
from tests.router.support.relayed import relayed, settings_of
from tests.router.support.scripted import ScriptedBackend

from eyas.router.settings.schema import ServerSettings

CLIENT_KEY, BACKEND_KEY = "sk-of-the-client-271828", "sk-of-the-backend-314159"
HEADERS = {
    "x-api-key": CLIENT_KEY,
    "Cookie": "session=of-the-client",
    "X-Forwarded-For": "10.9.8.7",
    "anthropic-beta": "a-beta",
    "x-claude-code-session-id": "s1",
}
HIDDEN = ("set-cookie", "x-by", CLIENT_KEY, BACKEND_KEY, "scripted/secret")


def test_keys_and_cookies_stay_on_their_side() -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True, key=BACKEND_KEY)
        async with backend.serving():
            settings = settings_of([backend], server=ServerSettings(api_key=CLIENT_KEY))
            async with relayed(backend, settings=settings) as router:
                for path in PATHS:
                    for stream in (True, False):
                        got = await ask(router.session, router.url, {}, path=path, stream=stream, headers=HEADERS)
                        assert (got.outcome, got.backend) == ("done", "a")
                        assert not any(word in f"{got.headers}".lower() for word in HIDDEN)
                        assert "server" not in got.headers
                leaking = {"status": 400, "error": f"this key is not good: {BACKEND_KEY}"}
                got = await ask(router.session, router.url, leaking, headers=HEADERS)
                assert (got.status, got.message) == (400, "this key is not good: ***")
                unknown = await ask(router.session, router.url, {})
                assert unknown.status == 401
        assert len(backend.asked) == 9
        for received in backend.asked:
            names = {name.lower(): value for name, value in received.headers}
            assert names["authorization"] == f"Bearer {BACKEND_KEY}"
            assert names["anthropic-beta"] == "a-beta"
            assert names["x-claude-code-session-id"] == "s1"
            assert not {"x-api-key", "cookie", "x-forwarded-for"} & set(names)
            assert CLIENT_KEY not in str(received)

    asyncio.run(main())


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_error_inside_a_stream_does_not_show_the_key(is_ours: bool) -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=is_ours, key=BACKEND_KEY)
        for path in PATHS:
            async with backend.serving(), relayed(backend) as router:
                for after in (0, 2):
                    script = {"end": "error", "after": after, "between_s": 0.02, "error": f"not for {BACKEND_KEY}"}
                    got = await ask(router.session, router.url, script, path=path)
                    assert got.outcome == "error" and BACKEND_KEY.encode() not in got.raw
                    assert not after or "not for ***" in got.message
                outcomes = await router.reported(2)
                assert not any(BACKEND_KEY in f"{one}" for one in (*outcomes, *router.happenings))

    asyncio.run(main())


def test_a_backend_that_refuses_the_key_of_the_router_is_not_the_fault_of_a_client() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving(), relayed(backend) as router:
            backend.key = BACKEND_KEY
            got = await ask(router.session, router.url, {})
            assert got.status == 503
            assert router.failures() == [("a", "status")]

    asyncio.run(main())


TARGETS = [
    "/sleep",
    "/collective_rpc",
    "/v1/../sleep",
    "/v1/%2e%2e/sleep",
    "/v1/chat/../../sleep",
    "/v1/chat%2Fcompletions",
    "/v1/chat/completions/",
    "//v1/chat/completions",
    "/v1/chat/completions/../../../sleep",
    "/V1/chat/completions",
    "/v1/responses/..%2f..%2fsleep",
    "/v1/responses/../sleep",
    "/v1/responses/a/cancel",
    "/v1/responses/..",
    "/v1/responses/a%00b",
    "/v1/tokenize",
    "/v1/load_lora_adapter",
    "/update_weights",
    "/scripted/received",
    "http://127.0.0.1:1/sleep",
    "*",
]


def test_other_paths_reach_nothing() -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        async with backend.serving(), relayed(backend) as router:
            host, port = router.url.removeprefix("http://").split(":")
            body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "{}"}]})
            for method in ("POST", "GET", "PUT", "OPTIONS"):
                for target in TARGETS:
                    reader, writer = await asyncio.open_connection(host, int(port))
                    head = f"{method} {target} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
                    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
                    answer = await reader.read()
                    assert answer.split(b" ")[1] in (b"400", b"404", b"405"), (method, target, answer[:200])
                    assert b"error" in answer or answer.startswith(b"HTTP/1.1 400"), target
                    writer.close()
            absolute = f"POST {router.url}/v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{absolute}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode())
            writer.write(f"Connection: close\r\n\r\n{body}".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
        assert [one.path for one in backend.received] == ["/v1/chat/completions"]

    asyncio.run(main())


@pytest.mark.parametrize("path", [*PATHS, "/v1/embeddings", "/v1/messages/count_tokens"])
def test_a_path_has_its_method(path: str) -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        async with backend.serving(), relayed(backend) as router, router.session.get(router.url + path) as response:
            assert response.status == 405
            assert "Method Not Allowed" in (await response.json())["error"]["message"]

    asyncio.run(main())


BODIES = [
    (b"", "application/json", 400, "JSON"),
    (b"[1]", "application/json", 400, "a JSON object"),
    (b'{"model": "scripted"', "application/json", 400, "JSON"),
    (b'{"model": 3}', "application/json", 400, "'model' must be a string"),
    (b'{"model": "scriptde"}', "application/json", 404, "did you mean 'scripted'"),
    (b'{"model": "route/MATH"}', "application/json", 404, "does not exist"),
    (b'{"model": "claude-fable-9"}', "application/json", 404, "does not exist"),
    (b'{"model": "scripted"}', "text/plain", 415, "send JSON"),
    (b"[" * 100_000, "application/json", 400, ""),
    (b'{"a":' * 100_000, "application/json", 400, ""),
]


def test_bad_bodies() -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        async with backend.serving(), relayed(backend, server=ServerSettings(max_body=1 << 20)) as router:
            for path in (*PATHS, "/v1/embeddings"):
                for body, kind, status, message in BODIES:
                    if b"claude" in body and path == "/v1/messages":
                        continue
                    async with router.session.post(
                        router.url + path, data=body, headers={"Content-Type": kind}
                    ) as response:
                        said = await response.json()
                        assert (response.status, message in said["error"]["message"]) == (status, True), (path, said)
                        assert ("type" in said) == (path == "/v1/messages")
            large = io.BytesIO(b" " * (2 << 20))
            headers = {"Content-Type": "application/json", "Content-Length": str(2 << 20)}
            async with router.session.post(router.url + PATHS[0], data=large, headers=headers) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (413, "body_too_large")
        assert backend.asked == []

    asyncio.run(main())


def test_large_and_small_bodies_come_in_pieces() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving(), relayed(backend) as router:
            for size in (100, 200_000):
                body = json.dumps({"messages": [{"role": "user", "content": "x" * size}]}).encode()

                async def pieces(body: bytes = body) -> AsyncIterator[bytes]:
                    for at in range(0, len(body), 1 + len(body) // 7):
                        yield body[at : at + 1 + len(body) // 7]
                        await asyncio.sleep(0.01)

                for length in ({"Content-Length": str(len(body))}, {}):
                    headers = {"Content-Type": "application/json", **length}
                    async with router.session.post(router.url + PATHS[0], data=pieces(), headers=headers) as response:
                        assert response.status == 200
                    assert backend.asked[-1].json["messages"] == json.loads(body)["messages"]
            kind = {"Content-Type": "application/json;charset=UTF-8"}
            async with router.session.post(router.url + PATHS[0], data=b"{}", headers=kind) as response:
                assert response.status == 200

    asyncio.run(main())
