"""Checks that llguidance enforces a JSON schema in full: what it would silently ignore is refused by name here."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.grammar_limits import MAX_ROW_ITEMS_SCHEMA
from eyas.base.harmony.tools import check_schema
from eyas.gateway.grammar.schema_ends import can_end
from eyas.gateway.grammar.schema_extent import extent_of
from eyas.gateway.grammar.schema_numbers import check_common_multiple, check_numbers

__all__ = ["check_enforceable", "check_followable", "without_plain_formats"]

MAX_PROPERTIES = 1000
MAX_OPTIONAL = 100  # rounded, at 4 parser items each
ITEMS_AROUND = 20  # parser items for the part of an answer around the schema

ONE_SCHEMA = ("items", "additionalItems", "additionalProperties")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
ENFORCED = {
    *("type", "enum", "const", "$ref", "required", "format", "pattern", "minLength", "maxLength"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
    *ONE_SCHEMA,
    *SCHEMA_LISTS,
    *SCHEMA_MAPS,
}
# Keywords that do not affect which values are valid.
ANNOTATIONS = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "contentEncoding", "contentMediaType"),
    "discriminator",  # OpenAPI: selects an alternative; the alternatives themselves bind the value
}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
PLAIN_FORMATS = {"binary", "directory-path", "file-path", "password", "path"}  # every text is valid


def check_enforceable(schema: Mapping[str, Any], *, param: str) -> None:
    """Raises InvalidRequest, with the path, for a schema that is too large or has a part that cannot be enforced."""
    check_schema(schema, param=param)
    num_properties = 0
    for path, inner in _subschemas(schema, "$"):
        if not isinstance(inner, Mapping):
            continue
        for keyword in inner:
            if keyword not in ENFORCED and keyword not in ANNOTATIONS and not _is_extension(keyword):
                raise InvalidRequest(f"{path}: the schema keyword {keyword!r} cannot be enforced", param=param)
        reference = inner.get("$ref")
        if reference is not None and not (isinstance(reference, str) and reference.startswith("#")):
            raise InvalidRequest(f"{path}.$ref: only references within the schema ('#...') are followed", param=param)
        wanted = inner.get("format")
        if wanted is not None and not (isinstance(wanted, str) and wanted in FORMATS | PLAIN_FORMATS):
            known = ", ".join(sorted(FORMATS))
            raise InvalidRequest(f"{path}.format: {wanted!r} cannot be enforced; known are {known}", param=param)
        properties = inner.get("properties")
        num_properties += len(properties) if isinstance(properties, Mapping) else 0
        if num_properties > MAX_PROPERTIES:
            raise InvalidRequest(f"the schema has more than {MAX_PROPERTIES} properties", param=param)
    check_followable(schema, param=param)
    if extent_of(schema, param=param).busiest > MAX_ROW_ITEMS_SCHEMA - ITEMS_AROUND:
        raise InvalidRequest(
            "too many properties may come next at one place: an object and its alternatives may have about "
            f"{MAX_OPTIONAL} optional properties in all; list more of them in 'required'",
            param=param,
        )


def check_followable(schema: Mapping[str, Any], *, param: str) -> None:
    """Raises InvalidRequest for a supported schema that has numbers that would be rounded, requires a value without
    end, or takes memory without bound to compile."""
    with_factors = []
    for path, inner in _objects(schema):
        check_numbers(inner, path, param=param)
        if "multipleOf" in inner:
            with_factors.append(inner)
    if len(with_factors) > 1:
        check_common_multiple(with_factors, param=param)
    extent_of(schema, param=param)
    if not can_end(schema):
        raise InvalidRequest(f"{param} cannot be enforced: every value that it allows requires another", param=param)


def without_plain_formats(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema without formats that every text satisfies: llguidance does not know them."""
    if not any(_has_plain_format(inner) for _, inner in _subschemas(schema, "$")):
        return schema
    own = copy.deepcopy(schema)
    for _, inner in _subschemas(own, "$"):
        if isinstance(inner, dict) and _has_plain_format(inner):
            del inner["format"]
    return own


def _has_plain_format(schema: object) -> bool:
    wanted = schema.get("format") if isinstance(schema, Mapping) else None
    return isinstance(wanted, str) and wanted in PLAIN_FORMATS


def _is_extension(keyword: str) -> bool:
    """Whether a keyword is a vendor's own annotation; one of these is llguidance's switch for leniency."""
    return keyword.startswith("x-") and keyword != "x-guidance"


def _objects(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield all objects in a schema, at any depth: a reference may lead to any of them."""
    todo: list[tuple[str, object]] = [("$", schema)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, Mapping):
            yield path, value
            todo += ((f"{path}.{name}", inner) for name, inner in value.items())
        elif isinstance(value, list | tuple):
            todo += ((f"{path}[{i}]", inner) for i, inner in enumerate(value))


def _subschemas(schema: object, path: str) -> Iterator[tuple[str, object]]:
    yield path, schema
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        if keyword in SCHEMA_MAPS and isinstance(value, Mapping):
            for name, inner in value.items():
                yield from _subschemas(inner, f"{path}.{keyword}.{name}")
        elif keyword in SCHEMA_LISTS and isinstance(value, list | tuple):
            for i, inner in enumerate(value):
                yield from _subschemas(inner, f"{path}.{keyword}[{i}]")
        elif keyword in ONE_SCHEMA:
            yield from _subschemas(value, f"{path}.{keyword}")
