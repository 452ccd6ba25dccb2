"""A small real tokenizer, the stub engine, and a real server on a free port."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import openai
import pytest
from tests.gateway.support import CONTEXT, Server, build_tokenizer, reply_ids, running

from eyas.base.harmony import stop_ids
from eyas.base.tokenizer import Tokenizer
from eyas.base.types import ModelInfo, Request
from eyas.engine.stub import StubEngine
from eyas.gateway.app import create_app
from eyas.gateway.connections import ConnectionLimits
from eyas.gateway.context import GatewayOptions


@pytest.fixture(scope="session")
def codec(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(folder)
    return Tokenizer.load(folder)


Start = Callable[..., Server]


@pytest.fixture
def serve(codec) -> Iterator[Start]:
    """Start a server on a stub engine: `serve(reply, drafts_per_round=..., round_s=..., num_cached=...)`.

    Of the server itself: `gateway=` a dict of GatewayOptions, `limits=` ConnectionLimits; `context=` tokens.
    """
    with ExitStack() as stack:
        yield lambda reply=None, **options: stack.enter_context(stub_server(codec, reply, **options))


@pytest.fixture(scope="module")
def server(codec) -> Iterator[Server]:
    """One server for tests that leave it as it was."""
    with stub_server(codec, None) as server:
        yield server


@contextmanager
def stub_server(
    codec: Tokenizer,
    reply: Callable[[Request, int], list[int]] | None,
    *,
    gateway: dict | None = None,
    limits: ConnectionLimits | None = None,
    context: int = CONTEXT,
    **options: float,
) -> Iterator[Server]:
    info = ModelInfo(
        name="stub", context=context, vocab_size=codec.vocab_size, eos_ids=stop_ids(codec), drafter="eagle3"
    )
    engine = StubEngine(info, reply or (lambda request, choice: reply_ids(codec)), **options)
    gateway_options = GatewayOptions(**{"today": lambda: datetime.date(2026, 11, 20)} | (gateway or {}))
    with running(create_app(engine, codec, gateway_options), engine, limits) as url:
        yield Server(url, engine, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20))
