"""Request bodies: reading them within limits and decoding them strictly."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eyas.gateway.explain import explain, loosely, not_json
from eyas.gateway.workers import LARGE

__all__ = ["Fields", "decode", "json_response", "raw_response", "read_body", "weight"]

BodyT = TypeVar("BodyT", bound=Struct)

JSON = "application/json"
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
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind, loosely(raw)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(raw, error) from error


def json_response(value: object, *, status: int = 200) -> Response:
    return raw_response(msgspec.json.encode(value), status=status)


def raw_response(body: bytes, *, status: int = 200) -> Response:
    """Bytes that are JSON already."""
    return Response(body, status_code=status, media_type="application/json")
