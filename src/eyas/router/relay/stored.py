"""Places of stored responses: the backend that keeps each, and the client that it belongs to."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

__all__ = ["Place", "Stored", "is_response_id"]

MAX_RESPONSES = 10_000
RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class Place:
    backend: str
    owner: str


class Stored:
    """Remembers the newest MAX_RESPONSES."""

    def __init__(self, limit: int = MAX_RESPONSES) -> None:
        self._limit = limit
        self._places: OrderedDict[str, Place] = OrderedDict()

    def keep(self, response_id: str, backend: str, owner: str) -> None:
        """Remember where a response is."""
        self._places[response_id] = Place(backend, owner)
        self._places.move_to_end(response_id)
        if len(self._places) > self._limit:
            self._places.popitem(last=False)

    def find(self, response_id: str) -> Place | None:
        """Return where it is; None if that is not known."""
        return self._places.get(response_id)

    def forget(self, response_id: str) -> None:
        self._places.pop(response_id, None)


def is_response_id(text: str) -> bool:
    """Return whether a text can be the id of a response: it stands in a path, and can be nothing else there."""
    return RESPONSE_ID.fullmatch(text) is not None
