"""Whether a JSON schema has a value at all, or requires another value inside each one without end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from eyas.gateway.grammar.schema_extent import referred

__all__ = ["can_end"]

NESTED = ("object", "array")


def can_end(root: Mapping[str, Any]) -> bool:
    """Whether a schema has a finite value; False, for example, for a list whose node requires the next node."""
    ending: set[int] = set()
    waiting: dict[int, list[Mapping[str, Any]]] = {}
    todo = [root]
    while todo:  # a schema is visited again only when one that it depends on turns out to end
        schema = todo.pop()
        if id(schema) in ending:
            continue
        missing: list[Mapping[str, Any]] = []

        def ends(inner: object, missing: list[Mapping[str, Any]] = missing) -> bool:
            if not isinstance(inner, Mapping) or id(inner) in ending:
                return True
            missing.append(inner)
            return False

        if _ends(schema, root, ends):
            ending.add(id(schema))
            todo += waiting.pop(id(schema), ())
        for inner in missing:
            if id(inner) not in waiting and id(inner) not in ending:
                waiting[id(inner)] = []
                todo.append(inner)
            waiting[id(inner)].append(schema)
    return id(root) in ending


def _ends(schema: Mapping[str, Any], root: Mapping[str, Any], ends: Callable[[object], bool]) -> bool:
    if "const" in schema or "enum" in schema:
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and not ends(referred(root, reference)):
        return False
    if not all(ends(inner) for inner in _list(schema.get("allOf"))):
        return False
    for keyword in ("anyOf", "oneOf"):
        alternatives = _list(schema.get(keyword))
        if alternatives and not any([ends(inner) for inner in alternatives]):
            return False
    types = schema.get("type")
    names = [types] if isinstance(types, str) else _list(types)
    if not names or any(name not in NESTED for name in names):
        return True  # a scalar value is enough
    return any(all(ends(inner) for inner in _required(schema, name)) for name in names)


def _required(schema: Mapping[str, Any], kind: str) -> Iterable[object]:
    """Return schemas of values that must be in each object or array."""
    if kind == "object":
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            names = [name for name in _list(schema.get("required")) if isinstance(name, str)]
            yield from (properties[name] for name in names if name in properties)
        return
    least = schema.get("minItems", 0)
    if isinstance(least, int) and least > 0:
        first = _list(schema.get("prefixItems"))
        yield from first[:least]
        if least > len(first):
            yield schema.get("items", True)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
