"""Raw text to tokens and back, for clients that write the format themselves: special tokens are spelled out."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from eyas.base.tokens.tokenizer import TextCodec
from eyas.gateway.question.prompt_limit import CountingCodec

__all__ = ["Offsets", "decode_raw", "encode_raw"]

WINDOW = 8 << 10  # characters searched at once: the search blocks everything else


def encode_raw(codec: CountingCodec, text: str) -> list[int]:
    """Return ids of `text`; `<|start|>` in it is the special token, as in vLLM and llama.cpp. For trusted text only."""
    codec.expect(len(text))
    spelling, longest = _spellings(tuple(codec.special))
    ids: list[int] = []
    done = at = 0
    while at < len(text):
        match = spelling.search(text, at, at + WINDOW + longest)
        if match is None or match.start() >= at + WINDOW:
            at += WINDOW
        elif match[0] not in codec.special:
            at = match.start() + 1
        else:
            if done < match.start():
                ids += codec.encode(text[done : match.start()])
            ids.append(codec.special_id(match[0]))
            done = at = match.end()
    return ids + codec.encode(text[done:])


@lru_cache(maxsize=4)
def _spellings(names: tuple[str, ...]) -> tuple[re.Pattern[str], int]:
    """Return a pattern for special tokens, longest first, and its length. A digit matches any: most are numbered."""
    rules = dict.fromkeys(re.sub("[0-9]", "[0-9]", re.escape(name)) for name in sorted(names, key=len, reverse=True))
    return re.compile("|".join(rules)), max(map(len, names))


def decode_raw(codec: TextCodec, ids: Iterable[int]) -> str:
    """Return the text of `ids`, special tokens spelled out; bytes that are not UTF-8 become U+FFFD."""
    return b"".join(map(codec.token_bytes, ids)).decode(errors="replace")


class Offsets:
    """Offsets of tokens in a growing text, in characters; a part of a character has that character's offset."""

    def __init__(self, codec: TextCodec) -> None:
        self._token_bytes = codec.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def add(self, ids: Sequence[int], *, hidden: frozenset[int] = frozenset()) -> list[int]:
        """Return the offset of each of the next tokens; those in `hidden` have no text."""
        offsets = []
        for token_id in ids:
            offsets.append(self._num_chars)
            if token_id not in hidden:
                self._num_chars += len(self._decoder.decode(self._token_bytes(token_id)))
        return offsets
