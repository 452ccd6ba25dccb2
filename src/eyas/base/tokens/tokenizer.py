"""Text to token ids and back: the interface that Harmony needs, and a tokenizer over a Hugging Face tokenizer.json.

Ordinary text never becomes a special token: a caller that wants one takes its id from `special`.
Only byte-level BPE is known here (gpt-oss, GPT-2 and the demo model); the `tokenizers` library is imported on loading.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from eyas.base.errors import TooManyTokens, UserError
from eyas.base.tokens.cuts import cut_after, is_known

if TYPE_CHECKING:
    import tokenizers

__all__ = ["CONTROL_TOKENS", "TextCodec", "Tokenizer"]

CONTROL_TOKENS = ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>")

REPLACEMENT = "\ufffd".encode()
SHORT = 2048  # characters, half a millisecond: less than a thread may wait to get back a lock that it released


class TextCodec(Protocol):
    """The interface to a vocabulary that the Harmony renderer and parser need."""

    @property
    def special(self) -> Mapping[str, int]:
        """Ids of the special tokens by spelling, the seven CONTROL_TOKENS among them."""

    @property
    def longest(self) -> int:
        """Bytes of the longest token."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text; spellings of special tokens in it are ordinary text too."""

    def encode_within(self, text: str, limit: int) -> list[int]:
        """Encode like `encode`, or raise TooManyTokens as soon as there are certainly more than `limit` tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, possibly a part of a character. Never raises on an int."""


class Tokenizer:
    """A byte-level BPE tokenizer read from the tokenizer.json of a checkpoint folder."""

    def __init__(self, inner: tokenizers.Tokenizer, *, special: dict[str, int], pieces: dict[int, bytes]) -> None:
        self._inner = inner
        self._pieces = pieces
        self.longest = max(map(len, pieces.values()))
        self._can_cut = is_known(inner)
        self.special: Mapping[str, int] = MappingProxyType(special)
        self.vocab_size = max(pieces) + 1

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read `folder`/tokenizer.json.

        Raises UserError when the file is missing or unreadable, is not byte-level BPE, or lacks control tokens.
        """
        import tokenizers

        os.environ.setdefault(
            "TOKENIZERS_PARALLELISM", "false"
        )  # its threads do not speed up a single text, and they do not survive a fork
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"{folder} has no tokenizer.json; give the folder of a complete checkpoint")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"{path} cannot be read ({error}); fetch it again") from error
        inner.encode_special_tokens = True  # their spellings are split as text
        added = inner.get_added_tokens_decoder()
        special = {token.content: token_id for token_id, token in added.items() if token.special}
        if missing := [name for name in CONTROL_TOKENS if name not in special]:
            raise UserError(f"{path} lacks the special tokens {', '.join(missing)}; a Harmony tokenizer is needed")
        to_byte = {char: byte for byte, char in byte_alphabet().items()}
        pieces = {token_id: token.content.encode() for token_id, token in added.items()}
        try:
            for piece, token_id in inner.get_vocab(with_added_tokens=False).items():
                if token_id not in added:
                    pieces[token_id] = bytes(to_byte[char] for char in piece)
        except KeyError as error:
            raise UserError(f"{path} is no byte-level BPE tokenizer ({error} is no byte); use one") from error
        return cls(inner, special=special, pieces=pieces)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text; lone surrogates, which UTF-8 cannot hold, become U+FFFD.

        Other threads run meanwhile, unless the text is short. Raises InvalidRequest for a text that cannot be cut into
        pieces of a size that fits into memory.
        """
        return self._encode(text, None)

    def encode_within(self, text: str, limit: int) -> list[int]:
        """Encode like `encode`, or raise TooManyTokens as soon as there are certainly more than `limit` tokens.

        This takes no more time and memory than `limit` tokens do. If only the last piece exceeds the limit, the ids are
        returned: the whole text has been counted.
        """
        return self._encode(text, limit)

    def _encode(self, text: str, limit: int | None) -> list[int]:
        ids: list[int] = []
        start, end = 0, len(text)
        while start < end:
            at_least = len(ids) + math.ceil((end - start) / self.longest)  # a character has a byte or more
            if limit is not None and at_least > limit:
                raise TooManyTokens(at_least, limit)
            stop = cut_after(text, start) if self._can_cut else end
            ids += self._encode_piece(text[start:stop])
            start = stop
        return ids

    def _encode_piece(self, text: str) -> list[int]:
        clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if len(clean) < SHORT:
            return self._inner.encode(clean, add_special_tokens=False).ids
        # `encode` keeps the interpreter's lock until it is done; this does not.
        return self._inner.encode_batch_fast([clean], add_special_tokens=False)[0].ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token: its literal spelling if special, U+FFFD for ids that only pad the vocabulary."""
        return self._pieces.get(token_id, REPLACEMENT)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")


def byte_alphabet() -> dict[int, str]:
    """Return the printable character that stands for each byte in a byte-level vocabulary.

    Printable Latin-1 stands for itself, the 68 other bytes for U+0100 onwards in order (Radford et al., GPT-2, 2019).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
