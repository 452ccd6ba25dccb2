"""A watched server that runs by itself: from first sight over outages, other models and loops to being let in again."""

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tests.router.support.script import Script
from tests.router.support.scripted import ScriptedBackend
from tests.router.support.watched import FAST, watched

from eyas.base.errors import UserError
from eyas.router.manager.happenings import Happening
from eyas.router.settings.schema import BackendSettings


def at(server, **fields):
    return BackendSettings(name=server.name, url=server.url, key=server.key, **fields)


def canaries(server):
    return [one for one in server.received if one.is_canary]


def run(test):
    asyncio.run(test())


def test_at_first_sight_it_is_asked_a_question():
    async def test():
        async with ScriptedBackend(key="k", is_ours=True).serving() as server, watched(at(server)) as seen:
            condition = await seen.until("ready")
            assert (condition.model, condition.is_ours) == ("scripted", True)
            assert seen.states() == ["unknown", "ready"]
            before = server.num_models_asked
            await seen.until_true(lambda: server.num_models_asked > before + 3)
            (canary,) = canaries(server)
            assert canary.json["model"] == "scripted" and canary.header("authorization") == "Bearer k"
            assert canary.header("content-type") == "application/json" and canary.header("cookie") is None

    run(test)


def test_a_wrong_key():
    async def test():
        async with ScriptedBackend(key="k").serving() as server:
            wrong = BackendSettings(name="a", url=server.url, key="my-secret")
            async with watched(wrong) as seen:
                condition = await seen.until("out", cause="failed")
                assert condition.reason == "refuses the key (HTTP status 401)"
                server.key = "my-secret"
                await seen.until("ready")

    run(test)


def test_after_an_outage_it_is_asked_again():
    async def test():
        async with AsyncExitStack() as first:
            server = await first.enter_async_context(ScriptedBackend().serving())
            async with watched(at(server)) as seen:
                await seen.until("ready")
                await first.aclose()
                condition = await seen.until("unknown")
                assert condition.reason == "does not answer: Connection refused"
                again = ScriptedBackend(port=int(server.url.rpartition(":")[2]))
                async with again.serving():
                    await seen.until("ready")
                    assert len(canaries(again)) == 1

    run(test)


def test_another_model_after_an_outage_never_serves():
    async def test():
        async with AsyncExitStack() as first:
            server = await first.enter_async_context(ScriptedBackend().serving())
            async with watched(at(server)) as seen:
                await seen.until("ready")
                await first.aclose()
                await seen.until("unknown")
                other = ScriptedBackend(model="other", port=int(server.url.rpartition(":")[2]))
                async with other.serving():
                    condition = await seen.until("out", cause="another_model")
                    assert condition.reason == "had the model scripted and now has other" and not other.received
                    await seen.backends.start("a")  # a person knows better
                    assert (await seen.until("ready")).model == "other"

    run(test)


def test_garbage_never_serves_until_a_person_asks_again():
    async def test():
        async with ScriptedBackend().serving() as server:
            good, server.canary = server.canary, Script(text="!" * 100)
            async with watched(at(server)) as seen:
                condition = await seen.until("out", cause="canary")
                assert "over and over" in condition.reason
                asked = server.num_models_asked
                await seen.until_true(lambda: server.num_models_asked > asked + 3)
                assert len(canaries(server)) == 1 and seen.states() == ["unknown", "out"]
                server.canary = good
                await seen.backends.start("a")
                await seen.until("ready")

    run(test)


def test_a_busy_server_is_asked_again():
    async def test():
        async with ScriptedBackend().serving() as server:
            good, server.canary = server.canary, Script(status=429)
            async with watched(at(server)) as seen:
                await seen.until_true(lambda: len(canaries(server)) > 2)
                assert seen.now().state == "unknown"
                assert seen.now().reason == "answers a question with HTTP status 429"
                server.canary = good
                await seen.until("ready")

    run(test)


def test_one_that_hangs_is_left_to_its_breaker():
    async def test():
        async with ScriptedBackend().serving() as server, watched(at(server)) as seen:
            await seen.until("ready")
            server.models_hang = True
            await asyncio.sleep(0.3)
            assert seen.now().state == "ready"

    run(test)


def test_a_person_stops_and_starts_it():
    async def test():
        async with ScriptedBackend().serving() as server, watched(at(server)) as seen:
            await seen.until("ready")
            await seen.backends.stop("a")
            assert (seen.now().state, seen.now().cause) == ("out", "stopped")
            await asyncio.sleep(0.2)
            assert seen.states() == ["unknown", "ready", "out"]
            await seen.backends.start("a")
            await seen.until("ready")
            assert len(canaries(server)) == 2
            with pytest.raises(UserError, match="no backend 'b'"):
                await seen.backends.stop("b")

    run(test)


def test_one_that_loops_stays_out():
    async def test():
        async with ScriptedBackend().serving() as server, watched(at(server)) as seen:
            await seen.until("ready")
            seen.backends.happened(Happening(time_s=0.0, kind="loops", backend="a"))
            assert (seen.now().state, seen.now().cause) == ("out", "loops")
            await asyncio.sleep(0.2)
            assert seen.states() == ["unknown", "ready", "out"]
            await seen.backends.start("a")
            await seen.until("ready")

    run(test)


def test_one_that_loops_where_the_guard_observes_goes_on():
    async def test():
        async with ScriptedBackend().serving() as server, watched(replace(at(server), guard="observe")) as seen:
            await seen.until("ready")
            seen.backends.happened(Happening(time_s=0.0, kind="loops", backend="a"))
            assert seen.now().state == "ready"

    run(test)


def test_what_a_person_has_stopped_stays_so_when_its_last_answers_loop():
    async def test():
        async with ScriptedBackend().serving() as server, watched(at(server)) as seen:
            await seen.until("ready")
            await seen.backends.stop("a")
            seen.backends.happened(Happening(time_s=0.0, kind="loops", backend="a"))
            assert (seen.now().state, seen.now().cause) == ("out", "stopped")

    run(test)


def test_a_request_that_could_not_reach_it_makes_it_look_at_once():
    async def test():
        async with AsyncExitStack() as first:
            server = await first.enter_async_context(ScriptedBackend().serving())
            async with watched(at(server), pace=replace(FAST, look_s=600)) as seen:
                await seen.until("ready")
                await first.aclose()
                seen.backends.happened(Happening(time_s=0.0, kind="failed", backend="a", failure="refused"))
                await seen.until("unknown")

    run(test)


async def answered(answer, model=None):
    """The first condition of a server that answers everything with these bytes."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, watched(BackendSettings(name="a", url=f"http://127.0.0.1:{port}", model=model)) as seen:
        await seen.until_true(lambda: seen.now() is not None)
        return seen.reports["a"][0]


def http(status, body, more=""):
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n{body}".encode()


# A server of ours has an alias for Claude Code; vLLM lists adapters beside the model.
NAMES = (
    '{"id": "tuned", "root": "/adapters/tuned", "parent": "large"}, {"id": "large", "root": "large", "parent": null},'
    '{"id": "claude-large", "root": "large", "parent": null}'
)


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        (http(503, '{"error": {"message": "Loading model"}}'), "loading", "loads its model"),
        (http(503, "busy"), "unknown", "answers /v1/models with HTTP status 503"),
        (http(200, "<html>"), "unknown", "answers /v1/models with what is no list of models"),
        (http(200, '{"data": [{"id": 3}]}'), "unknown", "answers /v1/models with what is no list of models"),
        (http(302, "", "Location: http://127.0.0.1:1/\r\n"), "unknown", "answers /v1/models with HTTP status 302"),
        (http(200, '{"data": [{"id": "a"}, {"id": "b"}]}'), "out", "has several models (a, b); name one: model: a"),
        (http(200, f'{{"data": [{NAMES}]}}'), "unknown", "is asked a question first"),
        (b"SSH-2.0-x\r\n", "unknown", "answers what is not HTTP"),
        (b"", "unknown", "does not answer: the connection ended before the answer"),
    ],
)
def test_answers_of_all_kinds(answer, state, reason):
    condition = asyncio.run(answered(answer))
    assert (condition.state, condition.reason) == (state, reason)


def test_a_model_has_all_of_its_names():
    """llama-server calls a model by its file, and has what `--alias` says beside that."""
    body = '{"data": [{"id": "demo", "aliases": ["demo", "mine"], "object": "model"}]}'
    for name in ("demo", "mine"):
        assert asyncio.run(answered(http(200, body), name)).state == "unknown"
    condition = asyncio.run(answered(http(200, body), "yours"))
    assert (condition.state, condition.reason) == ("out", "has demo, mine, not yours")


def test_a_server_that_is_not_there():
    async def test():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with watched(BackendSettings(name="a", url=f"http://127.0.0.1:{port}")) as seen:
            assert (await seen.until("unknown")).reason == "does not answer: Connection refused"

    run(test)
