"""Decodes request bodies, strictly and within limits."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from starlette.responses import Response

from eyas.base.errors import InvalidRequest
from eyas.gateway.http.explain import INVALID_JSON, explain, loosely, not_json
from eyas.gateway.http.workers import LARGE

__all__ = ["Fields", "Raw", "decode", "json_response", "raw_response", "untyped_number", "weight"]

BodyT = TypeVar("BodyT", bound=Struct)

Raw: TypeAlias = bytes | bytearray

MAX_DIGITS = 17
MAX_NUMBER_CHARS = 40
SLOW_WORDS = (b"tools", b"format", b"structured_outputs")
MAX_VALUES = 1 << 19
MAX_CONTAINERS = 1 << 17
WINDOW = 64 << 10


class Fields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of request objects. None means "not given"; a field of type None is known but not supported."""


def weight(raw: Raw) -> int:
    """Return the size of a body for `Workers.run`; one that may hold schemas or grammars to compile counts as large."""
    if len(raw) < LARGE and any(word in raw for word in SLOW_WORDS):
        return LARGE
    return len(raw)


def decode(raw: Raw, kind: type[BodyT]) -> BodyT:
    """Check and decode a body. Raises InvalidRequest naming the field, with the nearest known name."""
    check_extent(raw)
    try:
        return msgspec.json.Decoder(kind, float_hook=untyped_number).decode(raw)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind, loosely(raw)) from error
    except INVALID_JSON as error:
        raise not_json(raw, error) from error


def untyped_number(text: str) -> float:
    """Return a number of a schema or other free JSON. Raises ValueError if the float differs from the number written:
    17 digits are enough for every float."""
    value = float(text)
    digits = re.sub(r"[eE].*|\D", "", text).lstrip("0")
    if math.isinf(value) or (value == 0 and digits):
        raise ValueError(f"number out of range: {text[:MAX_NUMBER_CHARS]}")
    if len(digits) > MAX_DIGITS and Decimal(text) != Decimal(repr(value)):
        raise ValueError(f"{text[:MAX_NUMBER_CHARS]} has more digits than a number holds; write at most {MAX_DIGITS}")
    return value


def check_extent(raw: Raw) -> None:
    """Raises InvalidRequest for more values than MAX_VALUES, or objects and lists than MAX_CONTAINERS.

    `{}` is two bytes and takes 64 when decoded, and decoding blocks everything else: 20 MB a second.
    """
    if raw.count(b",") <= MAX_VALUES and raw.count(b"{") + raw.count(b"[") <= MAX_CONTAINERS:  # within strings too
        return
    num_values = num_containers = start = 0
    in_string = False
    while start < len(raw):
        stop = start + WINDOW
        while raw[stop - 1 : stop] == b"\\":  # an escape and what it escapes stay together
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
            f"the body has at least {num_values} values, {num_containers} of them objects or lists; the "
            f"limit is {MAX_VALUES}, and {MAX_CONTAINERS} objects and lists"
        )


def json_response(value: object, *, status: int = 200) -> Response:
    return raw_response(msgspec.json.encode(value), status=status)


def raw_response(body: bytes, *, status: int = 200) -> Response:
    """Return a response of bytes that are JSON already."""
    return Response(body, status_code=status, media_type="application/json")
