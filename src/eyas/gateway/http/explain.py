"""Explains why a body is invalid: the field, its allowed values, and content that this model does not take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from eyas.base.errors import InvalidRequest, nearest

__all__ = ["INVALID_JSON", "explain", "loosely", "not_json"]

INVALID_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # raised for bytes that are none

# Parts of a message, by OpenAI's and vLLM's names, that hold something other than text.
MEDIA = {
    "image_url": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "videos",
    "file": "files",
    "input_file": "files",
}
SURROGATE = re.compile("[\ud800-\udfff]")
MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
STEP = re.compile(r"\[[^\]]*\]|\w+")  # a step of a path such as `messages[0].content`
MAX_BYTES = 1 << 20  # of a body that is searched for a lone surrogate: the search blocks everything else
MAX_VALUES = 200_000  # in a body that is decoded again for its error: some 20 MB of Python objects


def explain(message: str, kind: type[Struct], body: Any) -> InvalidRequest:
    """Return msgspec's message with the field first; it has it last: `Expected `int`, got `str` - at `$.seed``.

    `kind` is the type that the JSON `body` was decoded as; `body` is None if it is not available.
    """
    text, _, where = message.partition(" - at ")
    path = where.strip("`").rpartition("$")[2].removeprefix(".")
    if media := media_at(body, path):
        return media
    if unknown := re.search(r"unknown field `(.+)`", text):
        param = f"{path}.{unknown[1]}" if path else unknown[1]
        return InvalidRequest(f"unknown field '{param}'{nearest(unknown[1], names_at(kind, path, body))}", param=param)
    if text.startswith("Expected `null`"):
        return InvalidRequest(f"'{path}' is not supported by this server", param=path)
    if missing := re.search(r"missing required field `(.+)`", text):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"'{path}' is missing", param=path)
    if invalid := re.fullmatch(r"Invalid (?:enum )?value (.+)", text, re.DOTALL):
        known = ", ".join(map(repr, values_at(kind, path, body)))
        return InvalidRequest(f"'{path}' cannot be {invalid[1]}; it can be {known}", param=path)
    return InvalidRequest(f"'{path or 'body'}': {text[:1].lower()}{text[1:].replace('`', '')}", param=path or None)


def loosely(raw: bytes | bytearray) -> Any:
    """Return the body decoded without types, for `explain`; None if it is too large or not JSON after its error."""
    if num_values(raw) > MAX_VALUES:
        return None
    try:
        return msgspec.json.decode(raw)
    except INVALID_JSON:
        return None


def num_values(raw: bytes | bytearray) -> int:
    """Return an upper bound on the number of values in a JSON text."""
    return 1 + sum(map(raw.count, (b",", b"[", b"{")))


def not_json(raw: bytes | bytearray, error: Exception) -> InvalidRequest:
    """Explain why bytes are not JSON. A lone surrogate is located: it is left when a text is cut inside an emoji."""
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as wrong:
        return InvalidRequest(f"the body is not UTF-8: byte 0x{raw[wrong.start]:02x} at position {wrong.start}")
    path, half = "", None
    if len(raw) <= MAX_BYTES and MAYBE_SURROGATE.search(raw) and num_values(raw) <= MAX_VALUES:
        with suppress(ValueError, RecursionError):
            found = ((path, SURROGATE.search(text)) for path, text in texts_of(json.loads(text)))
            path, half = next(((path, half) for path, half in found if half), ("", None))
    if half is None:
        return InvalidRequest(f"the body is not JSON: {error}")
    return InvalidRequest(
        f"'{path or 'body'}' has half of a character at position {half.start()}, the lone surrogate "
        f"\\u{ord(half[0]):04x}: was the text cut inside an emoji? Cut it between whole characters",
        param=path or None,
    )


def texts_of(value: Any) -> Iterator[tuple[str, str]]:
    """Yield all texts of a JSON value, names of fields included, each with the path to it."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, str):
            yield path, one
        elif isinstance(one, dict):
            yield from ((path, name) for name in one)
            waiting += [(f"{path}.{name}".removeprefix("."), inner) for name, inner in reversed(one.items())]
        elif isinstance(one, list):
            waiting += [(f"{path}[{index}]", one[index]) for index in reversed(range(len(one)))]


def media_at(body: Any, path: str) -> InvalidRequest | None:
    """Return the error for a part at `path`, or around it, that is not text."""
    at = ""
    for step in ("", *STEP.findall(path)):
        body = inner(body, step) if step else body
        at += step if step.startswith("[") or not at else f".{step}"
        kind = body.get("type") if isinstance(body, dict) else None
        if isinstance(kind, str) and kind in MEDIA:
            return InvalidRequest(f"'{at}': no {MEDIA[kind]}, this model takes text only", param=at)
    return None


def inner(body: Any, step: str) -> Any:
    """Return the value at one step of a path, None if there is none."""
    if not step.startswith("["):
        return body.get(step) if isinstance(body, dict) else None
    index = step[1:-1]
    return body[int(index)] if isinstance(body, list) and index.isdigit() and int(index) < len(body) else None


def names_at(kind: type[Struct], path: str, body: Any) -> list[str]:
    """Return the names that the object at `path` of a body may have; for a union, those of all its members."""
    structs = [struct for hint in hints_at(kind, path, body) for struct in structs_in(hint)]
    return sorted({name for struct in structs for name in struct.__struct_encode_fields__})


def values_at(kind: type[Struct], path: str, body: Any) -> list[object]:
    """Return the values that the field at `path` of a body may have, as far as they can be listed, in order."""
    values = [value for hint in hints_at(kind, path, body) for value in literals_in(hint)]
    return list(dict.fromkeys(values))


def hints_at(kind: type[Struct], path: str, body: Any) -> list[Any]:
    """Return types that the field at `path` may have; a tag counts as a field, and selects the member of a union."""
    hints: list[Any] = [kind]
    for step in STEP.findall(path):
        if not step.startswith("["):
            structs = [struct for hint in hints for struct in structs_in(hint)]
            structs = [one for one in structs if is_tagged(one, body)] or structs
            hints = [get_type_hints(one)[step] for one in structs if step in one.__struct_fields__]
            tagged = [one.__struct_config__ for one in structs if one.__struct_config__.tag_field == step]
            hints += [Literal[config.tag] for config in tagged]
        body = inner(body, step)
    return hints


def is_tagged(struct: type[Struct], body: Any) -> bool:
    config = struct.__struct_config__
    return config.tag is not None and isinstance(body, dict) and body.get(config.tag_field) == config.tag


def structs_in(hint: Any) -> list[type[Struct]]:
    """Return the struct types that a type hint mentions."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return [struct for part in get_args(hint) for struct in structs_in(part)]


def literals_in(hint: Any) -> Iterable[object]:
    """Return the values of the Literals that a type hint mentions."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return [value for part in get_args(hint) for value in literals_in(part)]
