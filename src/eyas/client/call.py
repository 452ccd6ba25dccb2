"""A call of a tool in an answer."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Call"]


class Call(Struct, frozen=True, gc=False):
    """A whole call; `arguments` is JSON as the model wrote it, valid or not."""

    id: str
    name: str
    arguments: str
