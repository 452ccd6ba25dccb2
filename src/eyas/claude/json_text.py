"""Finds where things stand in a JSON text, so that a change of one leaves every other character as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from eyas.base.errors import UserError

__all__ = ["Container", "Item", "check", "find", "find_container"]

BLANK = re.compile(r"[ \t\n\r]*")
DECODER = json.JSONDecoder()


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A member of an object, or an element of an array, which has no key. `start`, `value`, `end` count characters."""

    key: str | None
    start: int  # of the key, or of the element
    colon: str  # what stands between key and value, blanks included
    value: int  # where the value begins
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """An object or an array: `start` is its opening bracket, `end` its closing one."""

    is_object: bool
    start: int
    end: int
    items: tuple[Item, ...]


def check(text: str) -> None:
    """Raise UserError unless `text` is one JSON object that names no key twice."""
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UserError(f"it is no JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError("it is JSON, but no object")


def find(text: str, path: Sequence[str]) -> Item | None:
    """Return the member that the keys of `path` lead to in a checked text, or None."""
    parent = find_container(text, path[:-1])
    if parent is None or not parent.is_object:
        return None
    return next((item for item in parent.items if item.key == path[-1]), None)


def find_container(text: str, path: Sequence[str]) -> Container | None:
    """Return the object or array that the keys of `path` lead to in a checked text; None if there is none."""
    position = _after_blank(text, 0)
    if path:
        item = find(text, path)
        if item is None:
            return None
        position = item.value
    return _container(text, position) if text[position] in "{[" else None


def _container(text: str, start: int) -> Container:
    items = tuple(_items(text, start))
    end = _after_blank(text, items[-1].end if items else start + 1)
    return Container(is_object=text[start] == "{", start=start, end=end, items=items)


def _items(text: str, start: int) -> Iterator[Item]:
    position = _after_blank(text, start + 1)
    while text[position] not in "}]":
        begin, key, colon = position, None, ""
        if text[start] == "{":
            key, position = DECODER.raw_decode(text, begin)
            value = _after_blank(text, _after_blank(text, position) + 1)
            colon, position = text[position:value], value
        _, end = DECODER.raw_decode(text, position)
        yield Item(key=key, start=begin, colon=colon, value=position, end=end)
        position = _after_blank(text, end)
        if text[position] == ",":
            position = _after_blank(text, position + 1)


def _after_blank(text: str, position: int) -> int:
    match = BLANK.match(text, position)
    return position if match is None else match.end()


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise UserError(f"it names the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")
