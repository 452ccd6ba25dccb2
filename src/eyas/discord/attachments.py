"""Reads files that are attached to a message: text to be quoted to the model, images for models that take them.

Only what lies on Discord's attachment hosts is fetched, without following redirects; sizes are looked at before and
while reading. What is not read is named with the reason, since a person would else take it for read.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from eyas.base.units import readable
from eyas.discord.settings.schema import Files

__all__ = ["Attached", "Contents", "ImageFile", "TextFile", "Unread", "read_attachments"]

LOOPBACK = ("127.0.0.1", "localhost")  # without TLS, where a test names them as hosts
TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml", "application/x-yaml")
BOMS = (  # that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
CHUNK_BYTES = 1 << 16
CONTROLS = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f]")  # that no text has; a log may have colours


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """A file of a message as Discord describes it."""

    name: str
    url: str
    num_bytes: int
    content_type: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFile:
    """A text and the name of its file."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFile:
    """An image as a `data:` URL, and the name of its file."""

    name: str
    url: str

    @property
    def part(self) -> dict[str, Any]:
        """The content part of a chat message."""
        return {"type": "image_url", "image_url": {"url": self.url}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A file that was not read; the reason goes on behind its name."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """Files of a message in their order."""

    texts: tuple[TextFile, ...] = ()
    images: tuple[ImageFile, ...] = ()
    unread: tuple[Unread, ...] = ()


class _NotReadError(Exception):
    """The reason why a file is not read, as its text."""


async def read_attachments(
    session: aiohttp.ClientSession, attached: Sequence[Attached], files: Files, *, takes_images: bool
) -> Contents:
    """Read the files of a message, one after the other. `takes_images`: the model that is asked does."""
    found: list[TextFile | ImageFile | Unread] = []
    for number, one in enumerate(attached):
        try:
            if number >= files.max_files:
                raise _NotReadError(f"is not read: at most {files.max_files} files of a message are")
            found.append(await _read(session, one, files, takes_images=takes_images))
        except _NotReadError as error:
            found.append(Unread(name=one.name, reason=str(error)))
    return Contents(
        texts=tuple(one for one in found if isinstance(one, TextFile)),
        images=tuple(one for one in found if isinstance(one, ImageFile)),
        unread=tuple(one for one in found if isinstance(one, Unread)),
    )


async def _read(
    session: aiohttp.ClientSession, one: Attached, files: Files, *, takes_images: bool
) -> TextFile | ImageFile:
    content_type = (one.content_type or "").partition(";")[0].strip().lower()
    if content_type.startswith("image/"):
        if not files.images:
            raise _NotReadError("is not read: images are off here")
        if not takes_images:
            raise _NotReadError("is not read: the model takes no images")
        content = await _fetch(session, one, files, files.max_image_bytes)
        return ImageFile(name=one.name, url=_data_url(content))
    is_text = PurePosixPath(one.name).suffix.lower() in files.suffixes
    if not is_text and not content_type.startswith(TEXT_TYPES):
        raise _NotReadError("is not read: it is no text file")
    return TextFile(name=one.name, text=_decoded(await _fetch(session, one, files, files.max_bytes)))


async def _fetch(session: aiohttp.ClientSession, one: Attached, files: Files, most: int) -> bytes:
    """Return the bytes of a file, at most `most`. Raises _NotReadError."""
    _check_place(one.url, files)
    _check_size(one.num_bytes, most)
    timeout = aiohttp.ClientTimeout(total=files.timeout_s)
    headers = {"Accept-Encoding": "identity"}
    try:
        async with session.get(one.url, allow_redirects=False, timeout=timeout, headers=headers) as answer:
            if answer.status != 200:
                raise _NotReadError(f"could not be read: Discord answered with status {answer.status}")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise _NotReadError("could not be read: it came compressed")
            _check_size(answer.content_length or 0, most)
            content = bytearray()
            async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                content += chunk
                _check_size(len(content), most)
            return bytes(content)
    except TimeoutError:
        raise _NotReadError(f"could not be read within {files.timeout_s:g} s") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise _NotReadError(f"could not be read: {type(error).__name__}") from None


def _check_size(num_bytes: int, most: int) -> None:
    if num_bytes > most:
        raise _NotReadError(f"is not read: it is larger than {readable(most)}")


def _check_place(url: str, files: Files) -> None:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise _NotReadError("is not read: its address is none") from None
    is_here = host in LOOPBACK and parts.scheme == "http"
    is_safe = parts.scheme == "https" and port in (None, 443)
    if host not in files.hosts or "@" in parts.netloc or not (is_here or is_safe):
        raise _NotReadError("is not read: it is not on Discord's attachment hosts")


def _decoded(content: bytes) -> str:
    encoding = next((name for bom, name in BOMS if content.startswith(bom)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        raise _NotReadError("is not read: it is no text in UTF-8 or UTF-16") from None
    if CONTROLS.search(text):
        raise _NotReadError("is not read: it is a binary file")
    return text


def _data_url(content: bytes) -> str:
    """Return an image as a URL. Its type is that of its bytes, whatever it is said to be."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        kind = "png"
    elif content.startswith(b"\xff\xd8\xff"):
        kind = "jpeg"
    elif content.startswith((b"GIF87a", b"GIF89a")):
        kind = "gif"
    elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        kind = "webp"
    else:
        raise _NotReadError("is not read: it is no PNG, JPEG, GIF or WebP")
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
