"""A small real tokenizer, the stub engine, and a real server on a free port."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import openai
import pytest
import tokenizers
from tests.gateway.support import CONTEXT, Server, reply_ids, running

from eyas.base.harmony import stop_ids
from eyas.base.tokenizer import CONTROL_TOKENS, Tokenizer
from eyas.base.types import ModelInfo, Request
from eyas.engine.stub import StubEngine
from eyas.gateway.app import create_app


@pytest.fixture(scope="session")
def codec(tmp_path_factory) -> Tokenizer:
    """Byte-level BPE over a few sentences, so small that most characters outside ASCII take several tokens."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[
            tokenizers.AddedToken(name, special=True, normalized=False) for name in (*CONTROL_TOKENS, "<|endoftext|>")
        ],
    )
    inner.train_from_iterator(["Hello there, user. The assistant greets back. analysis commentary final"] * 3, trainer)
    inner.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


Start = Callable[..., Server]


@pytest.fixture
def serve(codec) -> Iterator[Start]:
    """Start a server on a stub engine: `serve(reply, drafts_per_round=..., round_s=..., num_cached=...)`."""
    with ExitStack() as stack:
        yield lambda reply=None, **options: stack.enter_context(stub_server(codec, reply, **options))


@pytest.fixture(scope="module")
def server(codec) -> Iterator[Server]:
    """One server for tests that leave it as it was."""
    with stub_server(codec, None) as server:
        yield server


@contextmanager
def stub_server(
    codec: Tokenizer, reply: Callable[[Request, int], list[int]] | None, **options: float
) -> Iterator[Server]:
    info = ModelInfo(
        name="stub", context=CONTEXT, vocab_size=codec.vocab_size, eos_ids=stop_ids(codec), drafter="eagle3"
    )
    engine = StubEngine(info, reply or (lambda request, choice: reply_ids(codec)), **options)
    with running(create_app(engine, codec, today=lambda: datetime.date(2026, 11, 20)), engine) as url:
        yield Server(url, engine, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20))
