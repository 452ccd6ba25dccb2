"""What the bot says of its endpoint: a router with backends, a server alone, one that is slow or gone."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.discord.support.endpoint import WrittenEndpoint
from tests.router.support.inside import router_inside, settings_of

from eyas.discord.endpoint import Endpoint
from eyas.discord.settings.schema import Endpoint as EndpointSettings
from eyas.discord.settings.schema import Settings
from eyas.router.manager.condition import Condition

COUNTS = """vllm:num_requests_running{model="a"} 2
vllm:num_requests_waiting{model="a"} 1
vllm:spec_decode_num_drafts_total{model="a"} 100
vllm:spec_decode_num_accepted_tokens_total{model="a"} 150
"""


@asynccontextmanager
async def endpoint_of(url, key=None):
    first = EndpointSettings(name="endpoint", base_url=url, api_key=key)
    found = Endpoint(Settings(endpoint=first, state=Path("unused.sqlite")))
    try:
        yield found
    finally:
        await found.close()


def test_the_status_of_a_router_has_the_acceptance_length_of_its_backends():
    """Each backend is asked itself, without the router's key."""

    async def go():
        engine = WrittenEndpoint(lambda messages: [], counts=COUNTS)
        async with engine.serving():
            backends = settings_of({"fast": engine.url, "gone": "http://127.0.0.1:9"}, "scripted", concurrency=4)
            ready = Condition(state="ready", model="scripted")
            with router_inside(backends, {"fast": ready, "gone": Condition(state="down")}) as router:
                async with endpoint_of(router.url, "key-of-the-router") as found:
                    assert await found.status() == [
                        "fast: ready, 0 of 4 answers, acceptance length 2.50 tokens per round",
                        "gone: down, 0 of 4 answers",
                        "Queue: empty",
                    ]
        assert len(engine.scraped) == 1 and "Authorization" not in engine.scraped[0]

    asyncio.run(go())


@pytest.mark.parametrize(("counts", "more"), [
    (COUNTS, ["2 answers run, 1 wait", "Acceptance length 2.50 tokens per round"]),
    ("sglang:spec_accept_length 3.25\n", ["Acceptance length 3.25 tokens per round"]),
    ("no metrics {", []),
    (None, []),
])  # fmt: skip
def test_the_status_of_a_server(counts, more):
    async def go():
        engine = WrittenEndpoint(lambda messages: [], counts=counts)
        async with engine.serving(), endpoint_of(engine.url, "its-key") as found:
            assert await found.status() == ["The endpoint answers.", *more]
            assert engine.scraped[0]["Authorization"] == "Bearer its-key"

    asyncio.run(go())


def test_a_server_that_has_just_ended_does_not_answer():
    async def go():
        engine = WrittenEndpoint(lambda messages: [])
        async with endpoint_of("http://127.0.0.1:9") as nowhere:
            assert await nowhere.status() == ["The endpoint does not answer."]
        async with engine.serving():
            found = Endpoint(
                Settings(endpoint=EndpointSettings(name="endpoint", base_url=engine.url), state=Path("unused"))
            )
            assert await found.look()
        assert await found.status() == ["The endpoint does not answer."]
        await found.close()

    asyncio.run(go())


def test_the_list_of_models_is_the_last_one_where_it_takes_too_long():
    async def go():
        engine = WrittenEndpoint(lambda messages: [])
        async with engine.serving(), endpoint_of(engine.url) as found:
            engine.list_after_s = 1.0
            assert await found.names(within_s=0.05) == ()
            engine.list_after_s = 0.0
            assert await found.names() == ("scripted",)
            found._listed_at, engine.list_after_s = None, 1.0
            assert await found.names(within_s=0.05) == ("scripted",)

    asyncio.run(go())
