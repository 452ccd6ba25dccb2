"""Fields that a route sets in a request where the client has not: effort and the most tokens, by API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from eyas.router.routes.json_values import fields, plain
from eyas.router.settings.schema import RouteSettings

__all__ = ["added", "fields_of"]

# Other fields that say the same, which servers refuse next to ours if the values differ.
_SYNONYMS = {
    "max_tokens": (("max_completion_tokens",),),
    "reasoning_effort": (("chat_template_kwargs", "reasoning_effort"),),
}


def fields_of(route: RouteSettings, path: str) -> Mapping[str, Any]:
    """Return what `route` sets in a body for `path`, nested as there; nothing for paths that write no text."""
    match path:
        case "/v1/chat/completions":
            return {"reasoning_effort": route.effort, "max_tokens": route.max_tokens}
        case "/v1/completions":
            return {"max_tokens": route.max_tokens}
        case "/v1/responses":
            return {"reasoning": {"effort": route.effort}, "max_output_tokens": route.max_tokens}
        case "/v1/messages":
            return {"output_config": {"effort": route.effort}, "max_tokens": route.max_tokens}
    return {}


def added(route: RouteSettings, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields to set at the top of `body` (plain values, or JSON as `msgspec.Raw`); the client's own win.

    A field of value null is one that is not given. An object keeps what the client has in it.
    """
    new: dict[str, Any] = {}
    for name, value in fields_of(route, path).items():
        if any(_is_given(body, way) for way in _SYNONYMS.get(name, ())):
            continue
        if not _is_given(body, (name,)):
            new[name] = value
        elif isinstance(value, dict):
            theirs = fields(body[name])
            ours = {key: inner for key, inner in value.items() if not _is_given(theirs, (key,))}
            if theirs and ours:
                new[name] = {**theirs, **ours}
            elif ours and plain(body[name]) == {}:
                new[name] = ours
    return new


def _is_given(body: Mapping[str, Any], way: tuple[str, ...]) -> bool:
    for name in way[:-1]:
        body = fields(body.get(name))
    value = body.get(way[-1])
    return not (value is None or (isinstance(value, msgspec.Raw) and plain(value) is None))
