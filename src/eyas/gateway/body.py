"""Request bodies: decoding them within limits, strictly, and saying which field is wrong."""

from __future__ import annotations

import re
from typing import Any, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct
from starlette.responses import Response

from eyas.base.errors import InvalidRequest, nearest
from eyas.gateway.workers import LARGE

__all__ = ["Fields", "Raw", "decode", "json_response", "raw_response", "weight"]

BodyT = TypeVar("BodyT", bound=Struct)

Raw: TypeAlias = bytes | bytearray

SLOW_WORDS = (b"tools", b"format", b"structured_outputs")
MAX_VALUES = 1 << 19
MAX_CONTAINERS = 1 << 17
WINDOW = 64 << 10


class Fields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of request objects. None is "not given"; a field of type None is a known one that this server lacks."""


def weight(raw: Raw) -> int:
    """The size of a body for `Workers.run`; one that may hold schemas or grammars to compile counts as large."""
    if len(raw) < LARGE and any(word in raw for word in SLOW_WORDS):
        return LARGE
    return len(raw)


def decode(raw: Raw, kind: type[BodyT]) -> BodyT:
    """Check and read a body. Raises InvalidRequest naming the field, with the nearest known name."""
    check_extent(raw)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error


def check_extent(raw: Raw) -> None:
    """Raises InvalidRequest for more values than MAX_VALUES, or objects and lists than MAX_CONTAINERS.

    `{}` is two bytes, takes 64 when it is read, and nothing else runs until all are: 20 MB a second.
    """
    if raw.count(b",") <= MAX_VALUES and raw.count(b"{") + raw.count(b"[") <= MAX_CONTAINERS:  # even within strings
        return
    num_values = num_containers = start = 0
    in_string = False
    while start < len(raw):
        stop = start + WINDOW
        while raw[stop - 1 : stop] == b"\\":  # an escape goes with what it escapes
            stop += 1
        plain = raw[start:stop].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = plain.split(b'"')
        outside = b" ".join(parts[in_string::2])
        num_values += outside.count(b",")
        num_containers += outside.count(b"{") + outside.count(b"[")
        in_string ^= len(parts) % 2 == 0
        start = stop
    if num_values > MAX_VALUES or num_containers > MAX_CONTAINERS:
        raise InvalidRequest(
            f"the body has at least {num_values} values, {num_containers} of them objects or lists; at most "
            f"{MAX_VALUES} are taken, and {MAX_CONTAINERS} objects and lists"
        )


def explain(message: str, kind: type[Struct]) -> InvalidRequest:
    """msgspec's message with the field in front, e.g. `Expected `int`, got `str` - at `$.seed``."""
    text, _, where = message.partition(" - at ")
    path = where.strip("`").rpartition("$")[2].removeprefix(".")
    if unknown := re.search(r"unknown field `(.+)`", text):
        param = f"{path}.{unknown[1]}" if path else unknown[1]
        return InvalidRequest(f"unknown field '{param}'{nearest(unknown[1], names_at(kind, path))}", param=param)
    if text.startswith("Expected `null`"):
        return InvalidRequest(f"'{path}' is not supported by this server", param=path)
    if missing := re.search(r"missing required field `(.+)`", text):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"'{path}' is missing", param=path)
    return InvalidRequest(f"'{path or 'body'}': {text[:1].lower()}{text[1:].replace('`', '')}", param=path or None)


def names_at(kind: type[Struct], path: str) -> list[str]:
    """Names that the object at `path` of a body may have; of a union, those of all its members."""
    kinds = [kind]
    for name in re.findall(r"\.?(\w+)", re.sub(r"\[[^\]]*\]", "", path)):
        hints = [get_type_hints(one).get(name) for one in kinds if name in one.__struct_fields__]
        kinds = [struct for hint in hints for struct in structs_in(hint)]
    return sorted({name for one in kinds for name in one.__struct_encode_fields__})


def structs_in(hint: Any) -> list[type[Struct]]:
    """The struct types that a type hint mentions."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return [struct for part in get_args(hint) for struct in structs_in(part)]


def json_response(value: object, *, status: int = 200) -> Response:
    return raw_response(msgspec.json.encode(value), status=status)


def raw_response(body: bytes, *, status: int = 200) -> Response:
    """Bytes that are JSON already."""
    return Response(body, status_code=status, media_type="application/json")
