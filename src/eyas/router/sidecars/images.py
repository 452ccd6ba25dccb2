"""Images of a request: where they stand in its body, and the body with a text in the place of each."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from eyas.base.errors import InvalidRequest
from eyas.gateway.anthropic.text import NO_IMAGE
from eyas.gateway.http.body import Raw
from eyas.gateway.http.explain import INVALID_JSON
from eyas.router.routes.json_values import fields, items, plain

__all__ = ["MAX_IMAGE", "Image", "Images", "find_images", "may_have_images"]

MAX_IMAGE = 8 << 20  # bytes of an image that can be described
MAX_IMAGES = 1000  # in a request: 16 MiB of empty ones would take seconds
MAX_ADDRESS = 8192  # characters of an http(s) URL
MAX_DEPTH = 10  # a message of a list, its content, a result in it, a document in that, and so on
DESCRIBED = "[There is an image here. Another model describes it: {}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Dialect:
    """`mark` stands in every body with an image; in a text, its quotes would be escaped. `kinds` are those of parts."""

    field: str
    mark: bytes
    kinds: tuple[str, ...]
    text: str  # the kind of a part that is text


_DIALECTS = {
    "/v1/chat/completions": _Dialect(
        field="messages", mark=b'"image_url"', kinds=("image_url", "input_image"), text="text"
    ),
    "/v1/responses": _Dialect(field="input", mark=b'"input_image"', kinds=("input_image",), text="input_text"),
    "/v1/messages": _Dialect(field="messages", mark=b'"image"', kinds=("image",), text="text"),
}
_HOLDERS = ("content", "output", "source")  # fields of messages, results and documents that hold parts


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image as it can be shown to a model. `digest` is of its bytes, or of its address if it is elsewhere.

    None: there is nothing to show. It is no data URL in base64 and no address, or too large.
    """

    url: str = ""
    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Slot:
    number: int
    is_first: bool  # of the parts of its list
    is_followed: bool  # by something that is no image


class Images:
    """Images of one body, in order. `is_asked_about`: the user's newest message has one of them."""

    def __init__(self, dialect: _Dialect, tree: list[Any], images: list[Image], *, is_asked_about: bool) -> None:
        self._dialect, self._tree = dialect, tree
        self.images: Sequence[Image] = images
        self.is_asked_about = is_asked_about

    def replaced(self, descriptions: Sequence[str | None]) -> Mapping[str, Any]:
        """Return the field of the body that had images, with a description for each, or the line that there is one.

        A text depends on its image and on what stands beside it in its message, so that a history stays as it was.
        """
        return {self._dialect.field: msgspec.Raw(msgspec.json.encode(self._filled(self._tree, descriptions)))}

    def _filled(self, node: Any, descriptions: Sequence[str | None]) -> Any:
        if isinstance(node, _Slot):
            said = descriptions[node.number]
            line = NO_IMAGE if said is None else DESCRIBED.format(said)
            text = f"{'' if node.is_first else chr(10)}{line}{chr(10) if node.is_followed else ''}"
            return {"type": self._dialect.text, "text": text}
        if isinstance(node, list):
            return [self._filled(inner, descriptions) for inner in node]
        if isinstance(node, dict):
            return {name: self._filled(inner, descriptions) for name, inner in node.items()}
        return node


def may_have_images(path: str, raw: Raw) -> bool:
    """Return whether a body for `path` can have images: cheap, and false for nearly all that have none."""
    dialect = _DIALECTS.get(path)
    return dialect is not None and dialect.mark in raw


def find_images(path: str, body: Mapping[str, Any]) -> Images | None:
    """Return the images of a body for `path`; None if it has none. Raises InvalidRequest if there are too many.

    What is not as it should be is left as it is: the backend says what is wrong with it.
    """
    dialect = _DIALECTS[path]
    given, images = items(body.get(dialect.field)), list[Image]()
    tree = [_walk(message, dialect, images, MAX_DEPTH) for message in given]
    if not images:
        return None
    numbers = range(len(given) - 1, -1, -1)
    newest = next((number for number in numbers if _string(fields(given[number]).get("role")) == "user"), None)
    return Images(dialect, tree, images, is_asked_about=newest is not None and tree[newest] is not given[newest])


def _walk(value: Any, dialect: _Dialect, images: list[Image], depth: int) -> Any:
    """Return a value with slots for its images, which are added to `images`; itself if it has none."""
    if not isinstance(value, msgspec.Raw):
        return value
    json = bytes(value)
    has_mark, begin = dialect.mark in json, json[:1]
    del json  # it may be large
    if not has_mark or depth == 0:
        return value
    num_before = len(images)
    if begin == b"[":
        found: Any = [_walk(inner, dialect, images, depth - 1) for inner in items(value)]
        found = [
            _Slot(part.number, at == 0, at + 1 < len(found) and not isinstance(found[at + 1], _Slot))
            if isinstance(part, _Slot)
            else part
            for at, part in enumerate(found)
        ]
    else:
        part = fields(value)
        if _string(part.get("type")) in dialect.kinds:
            if num_before == MAX_IMAGES:
                raise InvalidRequest(f"a request can have at most {MAX_IMAGES} images", param=dialect.field)
            images.append(_image(part))
            return _Slot(num_before, False, False)
        found = {
            name: _walk(inner, dialect, images, depth - 1) if name in _HOLDERS else inner
            for name, inner in part.items()
        }
    return found if len(images) > num_before else value


def _image(part: Mapping[str, Any]) -> Image:
    """Read a part that is an image: `image_url` is a string or an object, `source` is of the messages dialect."""
    if (source := fields(part.get("source"))) and _string(source.get("type")) == "base64":
        kind, data = _string(source.get("media_type")), _string(source.get("data"))
        return _of_data(f"data:{kind};base64,{data}", data) if kind and data else Image()
    if source:
        url = _string(source.get("url"))
    else:
        given = part.get("image_url")
        url = _string(fields(given).get("url")) or _string(given)
    if url is None:
        return Image()
    scheme = url[:8].lower()
    if scheme.startswith("data:"):
        head, comma, data = url.partition(",")
        return _of_data(url, data) if comma and head.lower().endswith(";base64") else Image()
    if scheme.startswith(("http://", "https://")) and len(url) <= MAX_ADDRESS:
        return Image(url=url, digest=hashlib.sha256(url.encode()).digest())
    return Image()


def _of_data(url: str, data: str) -> Image:
    if len(data) > MAX_IMAGE * 4 // 3 + 4:
        return Image()
    try:
        decoded = base64.b64decode(data)
    except (binascii.Error, ValueError):
        return Image()
    if not 0 < len(decoded) <= MAX_IMAGE:
        return Image()
    return Image(url=url, digest=hashlib.sha256(decoded).digest())


def _string(value: Any) -> str | None:
    """Return a string; None for what is none, or is broken."""
    if isinstance(value, msgspec.Raw):
        if bytes(memoryview(value)[:1]) != b'"':
            return None
        try:
            value = plain(value)
        except INVALID_JSON:
            return None
    return value if isinstance(value, str) else None
