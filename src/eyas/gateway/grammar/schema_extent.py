"""Measures a JSON schema along its references: levels to compile, items to parse, indentation of its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from eyas.base.errors import InvalidRequest

__all__ = ["Extent", "equivalents", "extent_of", "referred"]

MAX_LEVELS = 200
MAX_SAME = 450  # more cannot be parsed at once
MAX_MERGED = 1000  # patterns are written out for each: the compiler's memory doubles with each level
OPEN_DEPTH = 8  # assumed if a value may nest without end

OBJECT_PARTS = ("properties", "patternProperties")
ALTERNATIVES = ("anyOf", "oneOf", "allOf")


class Extent(NamedTuple):
    """Measures of one schema and everything that it refers to."""

    levels: int  # nesting of schemas, references followed
    depth: int  # nesting of arrays and objects in a value; 8 if the schema does not bound it
    same: frozenset[int]  # by `id`, the schemas that a value of this one may be in
    busiest: int  # estimated parser items, where the most alternatives and optional properties meet
    merged: int  # schemas of the same value, counted as often as references lead to them


ANYTHING = Extent(1, OPEN_DEPTH, frozenset(), 8, 1)
SCALAR = Extent(1, 0, frozenset(), 1, 1)


def extent_of(schema: Mapping[str, Any], *, param: str) -> Extent:
    """Raises InvalidRequest for schemas that reach deeper than 200 levels."""
    return _Walk(schema, param).visit(schema, 1)


class _Walk:
    def __init__(self, root: Mapping[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._known: dict[int, Extent] = {}
        self._open: set[int] = set()
        self._items: dict[int, int] = {}

    def visit(self, schema: object, level: int) -> Extent:
        if not isinstance(schema, Mapping):
            return SCALAR if schema is False else ANYTHING
        key = id(schema)
        if key in self._open:
            return Extent(0, OPEN_DEPTH, frozenset(), 0, 0)
        known = self._known.get(key)
        if level + (0 if known is None else known.levels - 1) > MAX_LEVELS:
            raise InvalidRequest(
                f"the schema reaches deeper than {MAX_LEVELS} levels, references followed", param=self._param
            )
        if known is None:
            self._open.add(key)
            known = self._known[key] = self._measured(schema, level)
            self._open.discard(key)
        return known

    def _measured(self, schema: Mapping[str, Any], level: int) -> Extent:
        around = [self.visit(inner, level + 1) for inner in equivalents(self._root, schema)]
        within = [self.visit(inner, level + 1) for inner in _children(schema)]
        depth = max(
            _own_depth(schema, bounded_elsewhere=bool(around)),
            *(extent.depth for extent in around),
            *(extent.depth + 1 for extent in within),
            0,
        )
        # Alternatives that are scalars become one regular expression.
        self._items[id(schema)] = own = _own_items(schema) + sum(bool(extent.same) for extent in around)
        same = frozenset([id(schema)] if own else []).union(*(extent.same for extent in around))
        if len(same) > MAX_SAME:
            raise InvalidRequest(f"the schema has more than {MAX_SAME} alternatives at one place", param=self._param)
        merged = 1 + sum(extent.merged for extent in around)
        if "allOf" in schema and merged > MAX_MERGED:
            raise InvalidRequest(
                f"'allOf' brings more than {MAX_MERGED} schemas together at one place, references followed",
                param=self._param,
            )
        items = sum(self._items[key] for key in same)
        return Extent(
            levels=1 + max((extent.levels for extent in (*around, *within)), default=0),
            depth=depth,
            same=same,
            busiest=max(items, *(extent.busiest for extent in (*around, *within)), 0),
            merged=merged,
        )


def equivalents(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[object]:
    """Return schemas that apply to the same value."""
    for keyword in ALTERNATIVES:
        alternatives = schema.get(keyword)
        if isinstance(alternatives, list | tuple):
            yield from alternatives
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield referred(root, reference)


def _children(schema: Mapping[str, Any]) -> Iterator[object]:
    """Return schemas of the values inside the value, `additionalProperties: true` and the like excepted."""
    for keyword in OBJECT_PARTS:
        parts = schema.get(keyword)
        if isinstance(parts, Mapping):
            yield from parts.values()
    for keyword in ("prefixItems", "items", "additionalItems", "additionalProperties"):
        part = schema.get(keyword)
        if isinstance(part, list | tuple):
            yield from part
        elif isinstance(part, Mapping):
            yield part


def _own_depth(schema: Mapping[str, Any], *, bounded_elsewhere: bool) -> int:
    """Return 1 for an array or object, 0 for a scalar, and an assumed depth if the schema has no type."""
    fixed = [*_list(schema.get("enum", [])), *_list([schema["const"]] if "const" in schema else [])]
    if fixed:
        return OPEN_DEPTH if any(isinstance(value, Mapping | list | tuple) for value in fixed) else 0
    types = schema.get("type")
    if types is None:
        return 0 if bounded_elsewhere and not any(map(schema.__contains__, OBJECT_PARTS)) else OPEN_DEPTH
    depth = 0
    for name in _list(types):
        if name == "array":
            depth = max(depth, OPEN_DEPTH if schema.get("items", schema.get("additionalItems", True)) is True else 1)
        elif name == "object":
            depth = max(depth, OPEN_DEPTH if schema.get("additionalProperties", True) is True else 1)
    return depth


def _own_items(schema: Mapping[str, Any]) -> int:
    """Estimate parser items: 4 (measured) for each optional property, any of which may come next."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        required = {name for name in _list(schema.get("required")) if isinstance(name, str)}
        return 2 + 4 * len(properties.keys() - required)
    return 4 if any(name in ("array", "object") for name in _list(schema.get("type"))) else 0


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def referred(root: Mapping[str, Any], reference: str) -> object:
    """Return the target of a JSON pointer; True (any value) if there is none: the compiler refuses that."""
    node: Any = root
    for part in unquote(reference.removeprefix("#")).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and name in node:
            node = node[name]
        elif isinstance(node, list | tuple) and name in (places := [*map(str, range(len(node)))]):
            node = node[places.index(name)]
        else:
            return True
    return node
