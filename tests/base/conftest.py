"""Vocabularies for the Harmony tests: gpt-oss's own, where its ranks file is at hand, and a small trained one."""

from __future__ import annotations

import base64
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eyas.base.tokens.tokenizer import CONTROL_TOKENS, Tokenizer

DATA = Path(__file__).parents[3] / "shared" / "data"
RANKS = Path(os.environ.get("TIKTOKEN_ENCODINGS_BASE", DATA)) / "o200k_base.tiktoken"


class TiktokenCodec:
    """The TextCodec of a tiktoken encoding."""

    def __init__(self, encoding: Any, special: Mapping[str, int]) -> None:
        self.encoding = encoding
        self.special = special

        self.longest = max(map(len, encoding.token_byte_values()))

    def encode(self, text: str) -> list[int]:
        return self.encoding.encode_ordinary(text)

    def encode_within(self, text: str, limit: int) -> list[int]:
        return self.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        return self.encoding.decode_single_token_bytes(token_id)


@pytest.fixture(scope="session")
def ranks() -> dict[bytes, int]:
    if not RANKS.is_file():
        pytest.skip(f"needs {RANKS.name} in TIKTOKEN_ENCODINGS_BASE or ../shared/data")
    lines = (line.split() for line in RANKS.read_bytes().splitlines())
    return {base64.b64decode(piece): int(rank) for piece, rank in lines}


@pytest.fixture(scope="session")
def harmony(ranks: dict[bytes, int]) -> Any:
    """openai-harmony's encoding, read from the local ranks file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(RANKS.parent))
        import openai_harmony

        return openai_harmony.load_harmony_encoding("HarmonyGptOss")


@pytest.fixture(scope="session")
def o200k_pattern(ranks: dict[bytes, int]) -> str:
    """The pre-tokenizer pattern of o200k_base, as tiktoken defines it."""
    from tiktoken_ext import openai_public

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: ranks)
        return openai_public.o200k_base()["pat_str"]


@pytest.fixture(scope="session")
def o200k(harmony: Any, ranks: dict[bytes, int], o200k_pattern: str) -> TiktokenCodec:
    """gpt-oss's vocabulary, its 1091 special tokens included, without openai-harmony's tokenizer."""
    import tiktoken

    special = {name: harmony.encode(name, allowed_special="all")[0] for name in harmony.special_tokens_set}
    encoding = tiktoken.Encoding("o200k", pat_str=o200k_pattern, mergeable_ranks=ranks, special_tokens=special)
    return TiktokenCodec(encoding, special)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer.json of a byte-level BPE of 600 tokens, trained on this library's source text."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*CONTROL_TOKENS, "<|with space|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(inspect.getsource(inspect).splitlines(keepends=True), trainer)
    folder = tmp_path_factory.mktemp("small")
    inner.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def small(small_folder: Path) -> Tokenizer:
    return Tokenizer.load(small_folder)
