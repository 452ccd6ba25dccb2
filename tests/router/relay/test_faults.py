"""Each way in which a backend fails: the next one answers if nothing was shown, else the stream ends with an error."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.router.support.asking import PATHS, Got, ask
from tests.router.support.rawserver import RawServer, chunked, stream_head
from tests.router.support.relayed import Relayed, relayed, settings_of
from tests.router.support.script import Script
from tests.router.support.scripted import ScriptedBackend

from eyas.base.serving.budgets import Budgets
from eyas.router.upstream.address import Address

SHORT = Budgets(queue_s=5, prefill_s=0.2, stall_s=0.2)
LONG = Budgets(queue_s=5, prefill_s=5, stall_s=5)
# What the first backend does, and how its failure is counted; with a short budget where it takes one.
BEFORE: list[tuple[str, dict[str, Any], str | None]] = [
    ("500", {"status": 500}, "status"),
    ("503", {"status": 503}, "status"),
    ("its key is wrong", {"status": 401}, "status"),
    ("full", {"status": 429, "retry_after": "3"}, None),
    ("loading", {"status": 503, "error": "Loading model"}, None),
    ("html", {"html": True}, "malformed"),
    ("no object", {"body": "[1]"}, "malformed"),
    ("redirect", {"status": 307, "location": "http://127.0.0.1:1/v1/x"}, "malformed"),
    ("reset", {"end": "rst"}, "broken"),
    ("closed", {"end": "cut"}, "broken"),
    ("reset after the opening", {"end": "rst", "after": 0}, "broken"),
    ("cut after the opening", {"end": "cut", "after": 0}, "broken"),
    ("short", {"end": "short", "after": 0}, "broken"),
    ("error event", {"end": "error", "after": 0}, "status"),
]
WHOLE = {"short": "malformed", "error event": "status"}  # where it is another kind than in streams


def only(name: str, script: dict[str, Any]) -> dict[str, Any]:
    """A script that only one backend has."""
    return {"mark": "m1", "on": {name: script}}


@dataclass
class Pair:
    """A relay in front of the backends a and b."""

    router: Relayed
    backends: list[ScriptedBackend]

    async def ask(self, script: dict[str, Any], path: str, stream: bool = True) -> Got:
        """Ask, and look that nothing is left of it. Failures and requests are those of this call."""
        self.router.news.clear()
        self.router.happenings.clear()
        for backend in self.backends:
            backend.received.clear()
        got = await ask(self.router.session, self.router.url, script, path=path, stream=stream)
        assert len(await self.router.reported(1)) == 1
        assert self.router.in_flight() == 0
        return got

    @property
    def num_asked(self) -> list[int]:
        return [len(one.asked) for one in self.backends]


@asynccontextmanager
async def pair(budgets: Budgets = LONG) -> AsyncIterator[Pair]:
    backends = [ScriptedBackend(name, is_ours=True) for name in "ab"]
    async with backends[0].serving(), backends[1].serving(), relayed(*backends, budgets=budgets) as router:
        yield Pair(router, backends)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("name", "script", "kind"), BEFORE, ids=[name for name, _, _ in BEFORE])
def test_before_the_first_content_the_next_one_is_asked(
    name: str, script: dict[str, Any], kind: str | None, stream: bool
) -> None:
    async def main() -> None:
        async with pair() as both:
            for path in PATHS:
                got = await both.ask(only("a", script), path, stream)
                assert (got.outcome, got.status, got.backend) == ("done", 200, "b"), (path, got)
                assert got.what_is_wrong() is None
                counted = kind if stream else WHOLE.get(name, kind)
                assert both.router.failures() == ([] if counted is None else [("a", counted)]), path
                assert both.num_asked == [1, 1]
                assert (both.router.outcomes[0].num_asked, both.router.outcomes[0].status) == (2, 200)

    asyncio.run(main())


@pytest.mark.parametrize("script", [{"before_s": 3}, {"first_s": 3}, {"first_s": 3, "noise_s": 0.05}], ids=str)
def test_what_is_no_progress_spends_the_budget_of_the_prefill(script: dict[str, Any]) -> None:
    async def main() -> None:
        async with pair(SHORT) as both:
            for path in PATHS:
                got = await both.ask(only("a", script), path)
                assert (got.outcome, got.backend) == ("done", "b")
                assert both.router.failures() == [("a", "budget")]
                assert got.seconds < 1.5
                assert both.backends[0].asked[0].ended == "left"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ({"end": "rst", "after": 2, "between_s": 0.1}, "broken"),
        ({"end": "cut", "after": 2}, "broken"),
        ({"end": "short", "after": 2}, "broken"),
        ({"end": "hang", "after": 2}, "budget"),
        ({"end": "hang", "after": 2, "noise_s": 0.05}, "budget"),
        ({"end": "error", "after": 2, "error": "cannot go on"}, "status"),
    ],
    ids=str,
)
def test_after_the_first_content_there_is_an_error_and_no_clean_end(script: dict[str, Any], kind: str) -> None:
    async def main() -> None:
        async with pair(SHORT) as both:
            for path in PATHS:
                got = await both.ask({"mark": "m1", "between_s": 0.05, **script}, path)
                assert (got.outcome, got.status) == ("error", 200), (path, got)
                assert got.pieces == [("m1", 1, 4), ("m1", 2, 4)]
                assert got.what_is_wrong() is None
                assert both.router.failures() == [("a", kind)]
                assert both.num_asked == [1, 0]
                assert b"[DONE]" not in got.raw
                assert both.router.outcomes[0].status == (504 if kind == "budget" else 502)
                if kind == "status":
                    assert got.message == "cannot go on"

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_nobody_answers(stream: bool) -> None:
    async def main() -> None:
        async with pair() as both:
            for path in PATHS:
                got = await both.ask({"mark": "m1", "status": 500}, path, stream)
                assert (got.outcome, got.status) == ("error", 529 if path == "/v1/messages" else 503)
                assert int(got.headers["retry-after"]) >= 1
                assert "failed (status)" in got.message
                assert both.num_asked == [1, 1]
                assert both.router.outcomes[0].status == 503

    asyncio.run(main())


def test_all_are_full() -> None:
    async def main() -> None:
        async with pair() as both:
            got = await both.ask({"status": 429, "retry_after": "3"}, PATHS[0])
            assert (got.status, got.headers["retry-after"]) == (429, "3")
            assert both.router.failures() == []

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
def test_the_time_for_all_of_an_answer(path: str) -> None:
    async def main() -> None:
        async with pair(Budgets(total_s=0.4)) as both:
            got = await both.ask({"mark": "m1", "between_s": 0.15, "pieces": 20}, path)
            assert got.outcome == "error"
            assert got.pieces
            assert 0.3 < got.seconds < 2
            got = await both.ask({"mark": "m1", "before_s": 3}, path, stream=False)
            assert (got.status, got.seconds < 2) == (504, True)
            assert both.num_asked == [1, 0]

    asyncio.run(main())


def test_to_have_had_little_of_the_time_is_no_failure() -> None:
    """The first spends its budget and most of the whole time; that the rest is short is not the second one's fault."""

    async def main() -> None:
        async with pair(Budgets(prefill_s=0.4, total_s=0.6)) as both:
            for path in PATHS:
                got = await both.ask({"mark": "m1", "before_s": 3}, path)
                assert (got.outcome, got.status) == ("error", 504)
                assert both.num_asked == [1, 1]
                assert both.router.failures() == [("a", "budget")]
                assert both.router.outcomes[0].status == 504

    asyncio.run(main())


def test_nobody_listens_there() -> None:
    async def main() -> Got:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with backends[0].serving():
            pass
        async with backends[1].serving(), relayed(*backends) as router:
            got = await ask(router.session, router.url, {"mark": "m1"})
            assert router.failures() == [("a", "refused")]
            return got

    assert asyncio.run(main()).backend == "b"


def test_an_event_that_is_too_large() -> None:
    event = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * (17 << 20)}}]}).encode()

    async def main() -> None:
        server = RawServer([stream_head(), chunked(event + b"\n\n"), b"0\r\n\r\n"])
        async with server.serving() as raw, pair() as both:
            both.router.upstream.set_address(Address(name="a", url=raw.url))
            got = await both.ask({"mark": "m1"}, PATHS[0])
            assert (got.backend, both.router.failures()) == ("b", [("a", "malformed")])

    asyncio.run(main())


def test_a_whole_answer_waits_as_long_as_the_backend_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for its models: one that does not tell them has failed."""
    monkeypatch.setattr("eyas.router.relay.life.CHECK_S", 0.1)

    async def main() -> None:
        backends = [ScriptedBackend(name) for name in "ab"]
        script = only("a", {"before_s": 0.6})
        async with backends[0].serving(), backends[1].serving(), relayed(*backends, budgets=SHORT) as router:
            got = await ask(router.session, router.url, script, stream=False)
            assert (got.backend, got.outcome) == ("a", "done")
            assert backends[0].num_models_asked >= 2
            backends[0].models_hang = True
            got = await ask(router.session, router.url, script, stream=False)
            assert (got.backend, got.outcome) == ("b", "done")
            assert router.failures() == [("a", "budget")]

    asyncio.run(main())


def test_an_engine_that_hangs_behind_a_server_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It still tells its models; a request for one token shows that it generates nothing any more."""
    monkeypatch.setattr("eyas.router.relay.life.CHECK_S", 0.1)

    async def main(engine: str | None) -> Got:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with backends[0].serving(), backends[1].serving():
            settings = settings_of(backends, budgets=SHORT)
            engines = tuple(replace(one, engine=engine) for one in settings.backends)
            async with relayed(*backends, settings=replace(settings, backends=engines)) as router:
                long = only("a", {"before_s": 0.8})
                got = await ask(router.session, router.url, long, stream=False)
                assert (got.backend, got.outcome, router.failures()) == ("a", "done", [])
                backends[0].script = Script(before_s=9)  # of what is asked beside it
                got = await ask(router.session, router.url, long, stream=False)
                assert router.failures() == ([("a", "budget")] if got.backend == "b" else [])
                return got

    got = asyncio.run(main("vllm"))
    assert (got.backend, got.outcome) == ("b", "done")
    got = asyncio.run(main("llama.cpp"))  # it may have all of its slots at work
    assert (got.backend, got.outcome) == ("a", "done")


def test_one_look_that_goes_wrong_ends_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyas.router.relay.life.CHECK_S", 0.2)

    async def main() -> None:
        async with pair() as both:
            asking = asyncio.create_task(both.ask(only("a", {"before_s": 0.9}), PATHS[0], stream=False))
            await asyncio.sleep(0.1)
            there = both.router.upstream.address("a")
            both.router.upstream.set_address(replace(there, url="http://127.0.0.1:1"))
            await asyncio.sleep(0.2)
            both.router.upstream.set_address(there)
            got = await asking
            assert (got.backend, got.outcome, both.router.failures()) == ("a", "done", [])

    asyncio.run(main())
