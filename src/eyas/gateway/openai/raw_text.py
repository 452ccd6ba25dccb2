"""Raw text to tokens and back, where whoever sends it writes the format himself: spellings of special tokens count."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence

from eyas.base.tokenizer import TextCodec

__all__ = ["Offsets", "decode_raw", "encode_raw"]


def encode_raw(codec: TextCodec, text: str) -> list[int]:
    """Ids of `text`; `<|start|>` in it is the special token, as in vLLM and llama.cpp. Not for text of strangers."""
    names = sorted(codec.special, key=len, reverse=True)
    ids: list[int] = []
    for part in re.split(f"({'|'.join(map(re.escape, names))})", text):
        if part in codec.special:
            ids.append(codec.special[part])
        elif part:
            ids += codec.encode(part)
    return ids


def decode_raw(codec: TextCodec, ids: Iterable[int]) -> str:
    """Text of `ids`, special tokens spelled; bytes that are not UTF-8 become U+FFFD."""
    return b"".join(map(codec.token_bytes, ids)).decode(errors="replace")


class Offsets:
    """Where in a growing text each token begins, in characters; a part of a character begins where that begins."""

    def __init__(self, codec: TextCodec) -> None:
        self._token_bytes = codec.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def add(self, ids: Sequence[int], *, hidden: frozenset[int] = frozenset()) -> list[int]:
        """The offset of each of the next tokens; those in `hidden` have no text."""
        offsets = []
        for token_id in ids:
            offsets.append(self._num_chars)
            if token_id not in hidden:
                self._num_chars += len(self._decoder.decode(self._token_bytes(token_id)))
        return offsets
