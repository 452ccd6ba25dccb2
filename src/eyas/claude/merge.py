"""Writes settings into the text of a settings file, and takes them out again. Pure: text in, text out.

What stands there already keeps its characters and its order. Each change is recorded with what it replaced, and undone
one by one, the last first, wherever it stands by then: what was edited in between stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from eyas.base.errors import UserError
from eyas.claude.json_text import Container, Item, check, find, find_container

__all__ = ["Change", "Settings", "undo", "write"]

Settings = Mapping[str, object]  # strings, lists of strings, and such settings by name
INDENT = "  "


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A value that was replaced, a member that was added, or an element that was added to the array at `path`.

    `value` is what stands there since, `{}` or `[]` for a container that others were then put into. `former` is the
    text that it took the place of: the old value, or what stood between the brackets of a container that was empty.
    """

    kind: Literal["replaced", "member", "element"]
    path: tuple[str, ...]
    value: object
    former: str | None


def write(text: str, settings: Settings) -> tuple[str, list[Change]]:
    """Return `text` with `settings` in it and what was changed: objects are merged, lists get what they lack.

    Raises UserError if it is no JSON object, has a key twice, or has something else where a container belongs.
    """
    check(text)
    changes: list[Change] = []
    return _merge(text, (), settings, changes), changes


def undo(text: str, changes: Sequence[Change]) -> tuple[str, list[str]]:
    """Return `text` without `changes`, and the names of values that were changed since and stay. Raises as `write`."""
    check(text)
    kept: list[str] = []
    for change in reversed(changes):
        text = _undo_one(text, change, kept)
    return text, kept[::-1]


def _merge(text: str, path: tuple[str, ...], settings: Settings, changes: list[Change]) -> str:
    for key, value in settings.items():
        here = (*path, key)
        item = find(text, here)
        blank: dict[str, object] | list[object] | None = (
            {} if isinstance(value, Mapping) else [] if isinstance(value, list) else None
        )
        if item is None:
            text = _insert(text, path, key, value if blank is None else blank, changes)
        elif blank is None and _value(text, item) != value:
            changes.append(Change(kind="replaced", path=here, value=value, former=text[item.value : item.end]))
            text = text[: item.value] + json.dumps(value) + text[item.end :]
        elif blank is not None and not isinstance(_value(text, item), type(blank)):
            raise UserError(f"its {'.'.join(here)!r} is no {'list' if blank == [] else 'object'}")
        if isinstance(value, Mapping):
            text = _merge(text, here, value, changes)
        elif isinstance(value, list):
            for element in value:
                if element not in _elements(text, here):
                    text = _insert(text, here, None, element, changes)
    return text


def _insert(text: str, path: tuple[str, ...], key: str | None, value: object, changes: list[Change]) -> str:
    """Add a member, or an element without key, to the end of the container at `path`, set like those before it."""
    found = find_container(text, path)
    assert found is not None
    former = None if found.items else text[found.start + 1 : found.end]
    where: tuple[str, ...] = path if key is None else (*path, key)
    changes.append(Change(kind="element" if key is None else "member", path=where, value=value, former=former))
    if not found.items:
        before, after = _blanks(text, found)
        member = before + ("" if key is None else f"{json.dumps(key)}: ") + json.dumps(value) + after
        return text[: found.start + 1] + member + text[found.end :]
    last = found.items[-1]
    member = _gap(text, found) + ("" if key is None else json.dumps(key) + last.colon) + json.dumps(value)
    return f"{text[: last.end]},{member}{text[last.end :]}"


def _gap(text: str, found: Container) -> str:
    """Return the blanks between a comma and what follows it, as the container has them."""
    last = found.items[-1]
    if len(found.items) > 1:
        return text[text.index(",", found.items[-2].end) + 1 : last.start]
    return text[found.start + 1 : last.start] or ("" if last.colon == ":" else " ")


def _blanks(text: str, found: Container) -> tuple[str, str]:
    """Return the blanks before and after the only item of a container that is empty now: lines of the text's kind."""
    root = find_container(text, ())
    assert root is not None
    first = text[root.start + 1 : root.items[0].start] if root.items else f"\n{INDENT}"
    if "\n" not in first:
        return "", ""
    outer = text[text.rfind("\n", 0, found.start) + 1 : found.start]
    outer = outer[: len(outer) - len(outer.lstrip(" \t"))]
    newline = "\r\n" if "\r\n" in text else "\n"
    return newline + outer + first.rpartition("\n")[2], newline + outer


def _undo_one(text: str, change: Change, kept: list[str]) -> str:
    if change.kind == "element":
        parent = find_container(text, change.path)
        ours = [item for item in parent.items if _value(text, item) == change.value] if parent else []
        return _remove(text, parent, ours[-1], change.former) if parent and ours else text
    item = find(text, change.path)
    name = ".".join(change.path)
    if change.kind == "replaced":
        assert change.former is not None
        if item is not None and _value(text, item) == change.value:
            return text[: item.value] + change.former + text[item.end :]
        if item is None or text[item.value : item.end] != change.former:
            kept.append(name)
        return text
    if item is None:
        return text
    value = _value(text, item)
    if value == change.value:
        parent = find_container(text, change.path[:-1])
        assert parent is not None
        return _remove(text, parent, item, change.former)
    if not isinstance(change.value, dict | list) or not isinstance(value, type(change.value)):
        kept.append(name)
    return text


def _remove(text: str, parent: Container, item: Item, former: str | None) -> str:
    at = parent.items.index(item)
    if len(parent.items) == 1:
        return text[: parent.start + 1] + (former or "") + text[parent.end :]
    if at:
        return text[: parent.items[at - 1].end] + text[item.end :]
    return text[: item.start] + text[parent.items[1].start :]


def _value(text: str, item: Item) -> object:
    return json.loads(text[item.value : item.end])


def _elements(text: str, path: tuple[str, ...]) -> list[object]:
    parent = find_container(text, path)
    return [] if parent is None else [_value(text, item) for item in parent.items]
