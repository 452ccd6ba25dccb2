"""Remembers the tokens of long texts, so that a conversation's history is encoded once and not with every request."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from threading import Lock

from eyas.base.tokens.tokenizer import TextCodec

__all__ = ["RememberingCodec"]

MAX_BYTES = 64 << 20
LEAST_CHARS = 64  # shorter texts are encoded in less time than they are looked up
ENTRY_BYTES = 256  # of a text's digest, its place in the order and the objects around its ids
DIGEST_BYTES = 20  # two texts with one digest are never found, by chance or on purpose


class RememberingCodec:
    """A TextCodec that encodes as `codec` does, and forgets the texts that were not asked for longest.

    It keeps digests and ids, not texts, `max_bytes` of them at most. Safe in any thread.
    """

    def __init__(self, codec: TextCodec, *, max_bytes: int = MAX_BYTES) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = Lock()
        self.num_bytes = 0
        self.token_bytes = codec.token_bytes
        self.special: Mapping[str, int] = codec.special
        self.longest = codec.longest

    def encode(self, text: str) -> list[int]:
        if len(text) < LEAST_CHARS:
            return self._codec.encode(text)
        digest = _digest(text)
        found = self._find(digest)
        return self._keep(digest, self._codec.encode(text)) if found is None else found.tolist()

    def encode_within(self, text: str, limit: int) -> list[int]:
        if len(text) < LEAST_CHARS:
            return self._codec.encode_within(text, limit)
        digest = _digest(text)
        found = self._find(digest)
        if found is None or len(found) > limit:  # so that an error says the same in any case
            return self._keep(digest, self._codec.encode_within(text, limit))
        return found.tolist()

    def _find(self, digest: bytes) -> array[int] | None:
        with self._lock:
            if (found := self._known.get(digest)) is not None:
                self._known.move_to_end(digest)
            return found

    def _keep(self, digest: bytes, ids: list[int]) -> list[int]:
        kept = array("I", ids)
        size = _size(kept)
        if size > self._max_bytes:
            return ids
        with self._lock:
            if (replaced := self._known.pop(digest, None)) is not None:  # another thread was quicker
                self.num_bytes -= _size(replaced)
            self._known[digest] = kept
            self.num_bytes += size
            while self.num_bytes > self._max_bytes:
                _, oldest = self._known.popitem(last=False)
                self.num_bytes -= _size(oldest)
        return ids


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _size(ids: array[int]) -> int:
    return ENTRY_BYTES + ids.itemsize * len(ids)
