"""Stores responses for a while: in memory, bounded, each for its owner. Independent of Harmony and HTTP.

A conversation is a chain: each response references the one before it, which stays in memory as long as a later one
needs it, even when it is no longer found under its own id. Nothing is copied.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MAX_BYTES", "MAX_RESPONSES", "TTL_S", "Kept", "ResponseStore"]

MAX_RESPONSES = 10_000
MAX_BYTES = 256 << 20  # of JSON and of the index of its items
ITEM_BYTES = 300  # upper bound, measured: an id, its place in a tuple and its entry in a dict
TTL_S = 24 * 3600.0  # since it was last used


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kept:
    """One stored response: the items that its request added to the conversation, and the answer, as JSON.

    `owner` is the digest of a key; without keys all share the empty one. `item_ids` are the ids of the items of both.
    """

    response_id: str
    owner: bytes
    status: str
    input_items: bytes
    response: bytes
    item_ids: tuple[str, ...] = ()
    previous: Kept | None = None

    @property
    def num_json(self) -> int:
        """Return the bytes of its JSON."""
        return len(self.input_items) + len(self.response)

    @property
    def num_bytes(self) -> int:
        """Return the bytes that it takes in memory, approximately."""
        return self.num_json + ITEM_BYTES * len(self.item_ids)

    def chain(self) -> list[Kept]:
        """Return the conversation up to this response, oldest first."""
        links = [self]
        while (previous := links[-1].previous) is not None:
            links.append(previous)
        return links[::-1]


class ResponseStore:
    """Keeps the most recently used responses: at most `max_responses`, and `max_bytes` with those that they reference.

    Unknown, evicted and other owners' responses are all None, so that ids reveal nothing.
    """

    def __init__(
        self,
        *,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._found: OrderedDict[str, tuple[Kept, float]] = OrderedDict()  # least recently used first
        self._of_item: dict[tuple[bytes, str], Kept] = {}
        self._holders: dict[Kept, int] = {}  # reference counts: ids and later responses that keep each one in memory
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def put(self, kept: Kept) -> None:
        """Store a response under its new id, and evict the least recently used ones beyond the limits."""
        self._found[kept.response_id] = (kept, self._clock())
        for item_id in kept.item_ids:
            self._of_item[kept.owner, item_id] = kept
        self._hold(kept)
        self._trim()

    def get(self, response_id: str, owner: bytes) -> Kept | None:
        self._trim()
        kept = self._peek(response_id, owner)
        if kept is not None:
            self._found[response_id] = (kept, self._clock())
            self._found.move_to_end(response_id)
        return kept

    def find_item(self, item_id: str, owner: bytes) -> Kept | None:
        """Return the response that an item is part of."""
        self._trim()
        kept = self._of_item.get((owner, item_id))
        return None if kept is None else self.get(kept.response_id, owner)

    def delete(self, response_id: str, owner: bytes) -> bool:
        """Delete a response; returns whether it was there. Later responses of its conversation keep what they need."""
        self._trim()
        if self._peek(response_id, owner) is None:
            return False
        self._drop(response_id)
        return True

    def _peek(self, response_id: str, owner: bytes) -> Kept | None:
        kept, _ = self._found.get(response_id, (None, 0.0))
        return kept if kept is not None and kept.owner == owner else None

    def _trim(self) -> None:
        horizon = self._clock() - self._ttl_s
        while self._found:
            oldest, (_, used) = next(iter(self._found.items()))
            is_within = len(self._found) <= self._max_responses and self.num_bytes <= self._max_bytes
            if is_within and used >= horizon:
                return
            self._drop(oldest)

    def _drop(self, response_id: str) -> None:
        kept, _ = self._found.pop(response_id)
        for item_id in kept.item_ids:
            if self._of_item.get((kept.owner, item_id)) is kept:
                del self._of_item[kept.owner, item_id]
        self._release(kept)

    def _hold(self, kept: Kept) -> None:
        link: Kept | None = kept
        while link is not None:
            num_holders = self._holders.get(link, 0)
            self._holders[link] = num_holders + 1
            if num_holders:
                return
            self.num_bytes += link.num_bytes
            link = link.previous

    def _release(self, kept: Kept) -> None:
        link: Kept | None = kept
        while link is not None:
            self._holders[link] -= 1
            if self._holders[link]:
                return
            del self._holders[link]
            self.num_bytes -= link.num_bytes
            link = link.previous
