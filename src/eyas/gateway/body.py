"""Request bodies: reading them within limits, decoding them strictly, and saying which field is wrong."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eyas.base.errors import InvalidRequest, nearest
from eyas.gateway.workers import LARGE

__all__ = ["Fields", "decode", "json_response", "raw_response", "read_body", "untyped_number", "weight"]

BodyT = TypeVar("BodyT", bound=Struct)

JSON = "application/json"
MAX_DIGITS = 17
MAX_NUMBER_CHARS = 40
SLOW_WORDS = (b"tools", b"format", b"structured_outputs")


class Fields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of request objects. None is "not given"; a field of type None is a known one that this server lacks."""


async def read_body(request: HttpRequest) -> bytes:
    """The raw body. Raises HTTPException 415 unless it is declared as JSON, which pages of other sites cannot do.

    A browser asks before it sends a page's JSON to another site, but not for other kinds, or none.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        what = f"this is '{kind[:80]}'" if kind else "this has none"
        raise HTTPException(415, f"send JSON, with the header 'Content-Type: {JSON}'; {what}")
    return b"".join([part async for part in request.stream()])


def weight(raw: bytes) -> int:
    """The size of a body for `Workers.run`; one that may hold schemas or grammars to compile counts as large."""
    return max(len(raw), LARGE) if any(word in raw for word in SLOW_WORDS) else len(raw)


def decode(raw: bytes, kind: type[BodyT]) -> BodyT:
    """Check and read a body. Raises InvalidRequest naming the field, with the nearest known name."""
    try:
        return msgspec.json.Decoder(kind, float_hook=untyped_number).decode(raw)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error


def untyped_number(text: str) -> float:
    """A number of a schema or other free JSON. Raises ValueError where a float would not be what was written: 17 digits
    name every float."""
    value = float(text)
    digits = re.sub(r"[eE].*|\D", "", text).lstrip("0")
    if math.isinf(value) or (value == 0 and digits):
        raise ValueError(f"number out of range: {text[:MAX_NUMBER_CHARS]}")
    if len(digits) > MAX_DIGITS and Decimal(text) != Decimal(repr(value)):
        raise ValueError(f"{text[:MAX_NUMBER_CHARS]} has more digits than a number holds; write at most {MAX_DIGITS}")
    return value


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
