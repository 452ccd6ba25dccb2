"""Answers that repeat themselves, through the relay: counted, or ended and asked of the twin."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.router.support.asking import PATHS, Got, ask
from tests.router.support.relayed import Relayed, relayed, settings_of
from tests.router.support.scripted import Script, ScriptedBackend

from eyas.router.relay.outcome import Trip
from eyas.router.settings.schema import GuardMode

LOOP = {"loop": "the same words again ", "pieces": 200}
SYMBOL = {"loop": "!", "pieces": 700}


async def asked(
    script: dict[str, Any], *, guard: GuardMode, path: str, stream: bool = True, first: Script | None = None
) -> tuple[Got, Relayed]:
    """What a client gets in front of a, b and c, which is a's twin; `first` is a's script."""
    backends = [ScriptedBackend("a", script=first), ScriptedBackend("b"), ScriptedBackend("c")]
    async with backends[0].serving(), backends[1].serving(), backends[2].serving():
        settings = settings_of(backends, guard=guard)
        a, b, c = settings.backends
        settings = replace(settings, backends=(a, b, replace(c, twin_of="a")))
        async with relayed(*backends, settings=settings) as router:
            got = await ask(router.session, router.url, script, path=path, stream=stream)
            await asyncio.sleep(0.05)
            assert router.in_flight() == 0
    return got, router


def trips(router: Relayed) -> list[Trip]:
    return [one for one in router.news if isinstance(one, Trip)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
def test_observing_changes_nothing(path: str, stream: bool) -> None:
    got, router = asyncio.run(asked(SYMBOL, guard="observe", path=path, stream=stream))
    assert (got.outcome, got.text) == ("done", "!" * 700)
    assert trips(router) == [Trip(backend="a", model="scripted", kind="one_symbol", action="observe")]
    assert [one.failure for one in router.happenings if one.kind == "degenerate"] == ["one_symbol"]
    assert router.failures() == []


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_that_loops_is_asked_of_the_twin(path: str) -> None:
    script = {"mark": "m1", "on": {"a": LOOP}}
    got, router = asyncio.run(asked(script, guard="act", path=path, stream=False))
    assert (got.outcome, got.backend) == ("done", "c")
    assert got.what_is_wrong() is None
    assert router.failures() == [("a", "degenerate")]
    assert [one.action for one in trips(router)] == ["act"]


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_loops_ends_with_an_error(path: str) -> None:
    got, router = asyncio.run(asked({**LOOP, "between_s": 0.001}, guard="act", path=path))
    assert got.outcome == "error"
    assert "repeats itself" in got.message
    assert len(got.text) < 200 * len(str(LOOP["loop"]))
    assert router.failures() == [("a", "degenerate")]
    assert b"[DONE]" not in got.raw
    if path != "/v1/messages":
        assert got.code == "degenerate_output"


@pytest.mark.parametrize("path", PATHS)
def test_what_loops_before_anything_was_sent_is_asked_of_the_twin(path: str) -> None:
    first = Script(text="!" * 700, pieces=1)  # in the prompt, it would be something that may be repeated
    got, router = asyncio.run(asked({"mark": "m1"}, guard="act", path=path, first=first))
    assert (got.outcome, got.backend) == ("done", "c")
    assert router.failures() == [("a", "one_symbol")]


def test_off() -> None:
    got, router = asyncio.run(asked(SYMBOL, guard="off", path=PATHS[0]))
    assert (got.outcome, trips(router)) == ("done", [])
