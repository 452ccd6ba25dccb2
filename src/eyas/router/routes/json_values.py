"""Values of a body as the relay has them: plain, or JSON that is not decoded yet (`msgspec.Raw`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from eyas.gateway.http.explain import INVALID_JSON

__all__ = ["fields", "items", "plain"]

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])


def plain(value: Any) -> Any:
    """Return the value itself, read if it is JSON. Raises what msgspec does if that is broken."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def fields(value: Any) -> Mapping[str, Any]:
    """Return an object's fields, unread ones as they are; none of what is no object."""
    if isinstance(value, msgspec.Raw):
        try:
            return _object.decode(value)
        except INVALID_JSON:
            return {}
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """Return an array's items, unread ones as they are; none of what is no array."""
    if isinstance(value, msgspec.Raw):
        try:
            return _array.decode(value)
        except INVALID_JSON:
            return []
    return value if isinstance(value, list) else []
