"""The queue of requests that wait: fair between clients, in order of arrival within a client, and bounded.

Clients take turns, the one that was served longest ago first. A queue that is full lets a new client in all the same,
at the cost of the newest request of the client that has most in it (longest queue drop: B. Suter et al., "Design
considerations for supporting TCP with per-flow queueing", 1998).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["FairQueue", "Queued"]


class Queued(Protocol):
    """A request that can wait. `number` grows with every arrival."""

    @property
    def client(self) -> str: ...

    @property
    def number(self) -> int: ...


T = TypeVar("T", bound=Queued)


def _number(item: Queued) -> int:
    return item.number


class FairQueue(Generic[T]):
    """Holds at most `max_length` requests, beside those that come back after a failure."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._clients: dict[str, list[T]] = {}  # in the order of their turns
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def is_full(self) -> bool:
        return self._length >= self._max_length

    def push(self, item: T) -> None:
        """Add a request at its place by arrival: one that comes back after a failure stands before later ones."""
        insort(self._clients.setdefault(item.client, []), item, key=_number)
        self._length += 1

    def served(self, item: T) -> None:
        """Take a request out, since a backend takes it: its client has had its turn."""
        self.remove(item)
        rest = self._clients.pop(item.client, None)
        if rest:
            self._clients[item.client] = rest

    def remove(self, item: T) -> None:
        """Take a request out that is not served: its client keeps its turn."""
        items = self._clients[item.client]
        items.remove(item)
        if not items:
            del self._clients[item.client]
        self._length -= 1

    def displaced_by(self, client: str) -> T | None:
        """Return which request must leave a full queue for a new one of `client`; None if the new one must."""
        longest: list[T] = max(self._clients.values(), key=len, default=[])
        return longest[-1] if len(longest) > len(self._clients.get(client, ())) + 1 else None

    def order(self) -> Iterator[T]:
        """Yield all in the order in which they would be served now. The queue must not change meanwhile."""
        turns = list(self._clients.values())
        turn = 0
        while turns:
            for items in turns:
                yield items[turn]
            turn += 1
            turns = [items for items in turns if len(items) > turn]
