"""Streams go on byte by byte the same, in every dialect, however they are cut; what is no answer never begins one."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.support.asking import PATHS, ask, body_of
from tests.router.support.rawserver import RawServer, chunked, stream_head
from tests.router.support.relayed import Relayed, relayed
from tests.router.support.script import DIALECTS, Script
from tests.router.support.scripted import ScriptedBackend

from eyas.router.relay.pouring import parts_of
from eyas.router.relay.readers import READERS
from eyas.router.upstream.address import Address
from eyas.router.upstream.errors import UpstreamError


def stream_of(path: str, **fields: object) -> bytes:
    """A whole stream of the scripted backend."""
    answer = DIALECTS[path](Script(mark="m1", thoughts=2, **fields), "scripted", {})
    return b"".join([*answer.opening, *answer.thoughts, *answer.pieces, *answer.closing])


class Chunks:
    """A reply that is there already."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks[::-1]

    async def chunk(self) -> bytes:
        return self._chunks.pop() if self._chunks else b""


async def read(path: str, chunks: list[bytes]) -> list:
    batches = parts_of(Chunks([chunk for chunk in chunks if chunk]), READERS[path]())  # type: ignore[arg-type]
    return [part async for parts in batches for part in parts]


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=20)
@given(st.data())
def test_parts_are_the_same_for_any_chunks(path: str, data: st.DataObject) -> None:
    stream = stream_of(path)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    parts = asyncio.run(read(path, chunks))
    assert parts == asyncio.run(read(path, [stream]))
    assert b"".join(part.data for part in parts) == stream
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    thoughts = "" if path == "/v1/completions" else "(m1 thought 1)(m1 thought 2)"
    assert "".join(part.text for part in parts) == thoughts + "[m1 1/4][m1 2/4][m1 3/4][m1 4/4]"


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_ends_early_is_broken(path: str) -> None:
    stream = stream_of(path)
    events = stream.split(b"\n\n")[:-1]
    for number in range(len(events) - 1):
        early = b"".join(event + b"\n\n" for event in events[:number])
        with pytest.raises(UpstreamError) as caught:
            asyncio.run(read(path, [early]))
        assert caught.value.kind == "broken"


@pytest.mark.parametrize("path", PATHS)
def test_what_has_come_of_an_event_is_dropped(path: str) -> None:
    """The router's error event would be a part of it."""

    async def main() -> None:
        answer = DIALECTS[path](Script(mark="m1"), "scripted", {})
        pieces = b"".join([*answer.opening, *answer.pieces[:1]])
        server = RawServer([stream_head(), chunked(pieces), chunked(b": keep-ali"), b"0\r\n\r\n"])
        backend = ScriptedBackend(is_ours=True)
        async with server.serving() as raw, backend.serving(), relayed(backend) as router:
            router.upstream.set_address(Address(name="a", url=raw.url))
            got = await ask(router.session, router.url, {"mark": "m1"}, path=path)
            assert (got.outcome, got.pieces) == ("error", [("m1", 1, 4)])
            assert "ended before the answer" in got.message and b"keep-ali" not in got.raw

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS[:2])
def test_a_clean_end_without_done_is_one_when_every_choice_has_finished(path: str) -> None:
    stream = stream_of(path).removesuffix(b"data: [DONE]\n\n")
    assert b"".join(part.data for part in asyncio.run(read(path, [stream]))) == stream


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("event", [b"data: <html>\n\n", b"data: 17\n\n", b"data: {}\n\n"])
def test_an_event_that_is_none(path: str, event: bytes) -> None:
    with pytest.raises(UpstreamError) as caught:
        asyncio.run(read(path, [event]))
    assert caught.value.kind == "malformed"


@pytest.mark.parametrize("path", PATHS)
def test_streams_pass_unchanged(path: str) -> None:
    async def main() -> None:
        stream = stream_of(path)
        cuts = [stream[at : at + 37] for at in range(0, len(stream), 37)]
        server = RawServer([stream_head(), *map(chunked, cuts), b"0\r\n\r\n"])
        backend = ScriptedBackend(is_ours=True)
        async with server.serving() as raw, backend.serving(), relayed(backend) as router:
            router.upstream.set_address(Address(name="a", url=raw.url))
            got = await ask(router.session, router.url, {"mark": "m1"}, path=path)
            assert got.raw == stream
            assert got.outcome == "done"
            assert router.in_flight() == 0

    asyncio.run(main())


def test_of_a_body_only_the_model_changes() -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True, model="other")
        async with backend.serving(), relayed(backend) as router:
            router.upstream.set_address(Address(name="a", url=backend.url, model="other"))
            for path in PATHS:
                await check_body(router, backend, path, stream=True)
            for path in (*PATHS, "/v1/embeddings"):
                await check_body(router, backend, path, stream=False)

    async def check_body(router: Relayed, backend: ScriptedBackend, path: str, stream: bool) -> None:
        body = body_of("/v1/responses" if path == "/v1/embeddings" else path, "scripted", '{"mark": "m1"}', stream)
        odd = '[1e2, "\\u00e4", {"b": 1 ,"a": 2}]'
        raw = json.dumps(body, indent=3).replace('"scripted"', f'"scripted", "odd":  {odd}')
        headers = {"Content-Type": "application/json"}
        async with router.session.post(router.url + path, data=raw, headers=headers) as response:
            assert response.status == 200
            await response.read()
        sent = backend.asked[-1].body
        assert odd.encode() in sent
        assert json.loads(sent) == json.loads(raw) | {"model": "other"}
        assert list(json.loads(sent)) == list(json.loads(raw))

    asyncio.run(main())


@pytest.mark.parametrize("stream", ["1", '"true"', "[]"])
def test_what_some_servers_take_for_a_stream_is_refused(stream: str) -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        async with backend.serving(), relayed(backend) as router:
            headers = {"Content-Type": "application/json"}
            for path in PATHS:
                raw = f'{{"model": "scripted", "stream": {stream}}}'
                async with router.session.post(router.url + path, data=raw, headers=headers) as response:
                    assert response.status == 400
                    assert "'stream' must be true or false" in await response.text()
            assert backend.asked == [] and router.failures() == []

    asyncio.run(main())


def test_whole_answers_pass_unchanged() -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        async with backend.serving(), relayed(backend) as router:
            for path in PATHS:
                through = await ask(router.session, router.url, {"mark": "m1"}, path=path, stream=False)
                direct = await ask(router.session, backend.url, {"mark": "m1"}, path=path, stream=False)
                assert through.raw == direct.raw
                assert through.outcome == "done"

    asyncio.run(main())


def test_an_error_of_the_client_passes_unchanged() -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        async with backend.serving(), relayed(backend) as router:
            for path in PATHS:
                for stream in (True, False):
                    script = {"status": 418, "error": "tea only"}
                    through = await ask(router.session, router.url, script, path=path, stream=stream)
                    direct = await ask(router.session, backend.url, script, path=path, stream=stream)
                    assert (through.status, through.raw) == (418, direct.raw)
            assert router.failures() == []
            assert {one.status for one in await router.reported(8)} == {418}

    asyncio.run(main())
