"""Routes through the relay: what they set, what the client's own fields keep, and who decides."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.router.support.asking import PATHS, ask
from tests.router.support.relayed import Relayed, relayed, settings_of
from tests.router.support.script import Script
from tests.router.support.scripted import ScriptedBackend

from eyas.router.settings.schema import ModelSettings, RouterSettings, RouteSettings

ROUTES = (
    RouteSettings(name="MATH", effort="high", max_tokens=100),
    RouteSettings(name="SELF_HANDLE", effort="low", max_tokens=200, model="small"),
)
SET = {
    "/v1/chat/completions": {"reasoning_effort": "high", "max_tokens": 100},
    "/v1/completions": {"max_tokens": 100},
    "/v1/responses": {"reasoning": {"effort": "high"}, "max_output_tokens": 100},
    "/v1/messages": {"output_config": {"effort": "high"}},
}


def routed(backends: list[ScriptedBackend], **fields: Any) -> RouterSettings:
    """Settings with the models scripted on a, small on b."""
    models = (ModelSettings(name="scripted", backends=("a",)), ModelSettings(name="small", backends=("b",)))
    return replace(settings_of(backends), models=models, routes=ROUTES, **fields)


@asynccontextmanager
async def both(backends: list[ScriptedBackend], **fields: Any) -> AsyncIterator[Relayed]:
    """A relay in front of both backends; its settings are not known before they serve."""
    a, b = backends
    async with a.serving(), b.serving(), relayed(*backends, settings=routed(backends, **fields)) as router:
        yield router


def test_a_route_sets_what_the_client_has_not() -> None:
    async def main() -> None:
        backends = [ScriptedBackend(name, is_ours=True) for name in "ab"]
        async with both(backends) as router:
            for path in PATHS:
                got = await ask(router.session, router.url, {"mark": "m1"}, path=path, model="route/MATH")
                assert (got.status, got.backend, got.headers["x-eyas-route"]) == (200, "a", "MATH")
                sent = backends[0].asked[-1].json
                assert {name: sent[name] for name in SET[path]} == SET[path]
                assert sent["model"] == "scripted"
            fields = {"reasoning_effort": "low", "max_completion_tokens": 7}
            await ask(router.session, router.url, {}, model="route/MATH", **fields)
            sent = backends[0].asked[-1].json
            assert (sent["reasoning_effort"], sent["max_completion_tokens"]) == ("low", 7)
            assert "max_tokens" not in sent
            got = await ask(router.session, router.url, {}, model="route/SELF_HANDLE")
            assert (got.backend, got.headers["x-eyas-route"]) == ("b", "SELF_HANDLE")
            assert [one.route for one in await router.reported(6)] == ["MATH"] * 5 + ["SELF_HANDLE"]

    asyncio.run(main())


def test_for_other_engines_a_route_sets_the_same() -> None:
    async def main() -> None:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with both(backends) as router:
            got = await ask(router.session, router.url, {"mark": "m1"}, path="/v1/messages", model="route/MATH")
            assert got.outcome == "done"
            assert backends[0].asked[0].json["reasoning_effort"] == "high"

    asyncio.run(main())


def test_auto_names_its_route() -> None:
    async def main() -> None:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with both(backends) as router:
            got = await ask(router.session, router.url, {"mark": "m1"}, model="route/auto")
            assert got.headers["x-eyas-route"] in ("MATH", "SELF_HANDLE")

    asyncio.run(main())


def test_the_resident_model_decides() -> None:
    async def main() -> None:
        backends = [ScriptedBackend("a", script=Script(text='{"route": "SELF_HANDLE"}')), ScriptedBackend("b")]
        async with both(backends, decide="model") as router:
            got = await ask(router.session, router.url, {"mark": "m1"}, model="route/auto")
            assert (got.outcome, got.backend, got.headers["x-eyas-route"]) == ("done", "b", "SELF_HANDLE")
            assert backends[0].asked[0].json["response_format"]["type"] == "json_schema"
            assert backends[0].asked[0].json["model"] == "scripted"
            assert router.in_flight() == 0

    asyncio.run(main())
