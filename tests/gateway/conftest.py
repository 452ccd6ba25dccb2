"""A small real tokenizer, the stub engine, and a real server on a free port; with EYAS_TEST_ROUTER, behind a router."""

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import openai
import pytest
from tests.gateway.support.gateway import CONTEXT, Server, build_tokenizer, reply_ids, running
from tests.gateway.support.openai import Stage
from tests.gateway.support.responses import Script

from eyas.base.harmony.rendering import stop_ids
from eyas.base.ports import EnginePort
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import ModelInfo, Request
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.app import DIALECTS, create_app
from eyas.gateway.operation.connections import ConnectionLimits
from eyas.gateway.server.context import GatewayOptions
from eyas.gateway.server.dialect import Dialect


@pytest.fixture(scope="session")
def codec(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(folder)
    return Tokenizer.load(folder)


Start = Callable[..., Server]


@pytest.fixture
def serve(codec) -> Iterator[Start]:
    """Start a server on a stub engine: `serve(reply, drafts_per_round=..., round_s=..., num_cached=...)`.

    Of the server itself: `gateway=` a dict of GatewayOptions, `limits=` ConnectionLimits; `context=` tokens;
    `wrap=` puts something between the server and the engine; `dialects=` are those of the server; `simulated=` is the
    model's.
    """
    with ExitStack() as stack:
        yield lambda reply=None, **options: stack.enter_context(stub_server(codec, reply, **options))


@pytest.fixture(scope="module")
def server(codec) -> Iterator[Server]:
    """One server for tests that leave it as it was."""
    with stub_server(codec, None) as server:
        yield server


@pytest.fixture(scope="module")
def scripted(codec) -> Iterator[tuple[Server, Script]]:
    """A server and the script of its answers."""
    script = Script()
    with stub_server(codec, script, context=2000) as server:
        yield server, script


@pytest.fixture
def play(codec, scripted) -> Callable[..., tuple[Server, Script]]:
    """One server for many scripts: `server, script = play(*replies)`; without replies it greets."""

    def start(*replies: list[int]) -> tuple[Server, Script]:
        scripted[1].play(*(replies or (reply_ids(codec),)))
        return scripted

    return start


@contextmanager
def stub_server(
    codec: Tokenizer,
    reply: Callable[[Request, int], list[int]] | None,
    *,
    gateway: dict | None = None,
    limits: ConnectionLimits | None = None,
    context: int = CONTEXT,
    wrap: Callable[[StubEngine], EnginePort] = lambda engine: engine,
    dialects: Sequence[Dialect] = DIALECTS,
    simulated: bool = False,
    **options: float,
) -> Iterator[Server]:
    info = ModelInfo(
        name="stub",
        context=context,
        vocab_size=codec.vocab_size,
        eos_ids=stop_ids(codec),
        drafter="eagle3",
        simulated=simulated,
    )
    engine = StubEngine(info, reply or (lambda request, choice: reply_ids(codec)), **options)
    gateway_options = GatewayOptions(**{"today": lambda: datetime.date(2026, 11, 20)} | (gateway or {}))
    app = create_app(wrap(engine), codec, gateway_options, dialects=dialects)
    with (
        running(app, engine, limits) as own_url,
        _in_front(own_url) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as client,
    ):
        yield Server(url, engine, client)


@contextmanager
def _in_front(url: str) -> Iterator[str]:
    """Put a router in front of the server if a test of the router wants that (tests/router/test_suites.py)."""
    if "EYAS_TEST_ROUTER" not in os.environ:
        yield url
        return
    from tests.router.support.inside import router_inside, settings_of

    from eyas.router.manager.condition import Condition

    ready = Condition(state="ready", model="stub", is_ours=True)
    with router_inside(settings_of({"stub": url}, "stub", concurrency=64), {"stub": ready}) as router:
        yield router.url


@pytest.fixture(scope="module")
def stage(codec) -> Iterator[Stage]:
    """One server for the tests of a module, which say what it answers."""
    stage = Stage(codec)
    with stub_server(codec, stage.reply) as stage.server:
        yield stage
