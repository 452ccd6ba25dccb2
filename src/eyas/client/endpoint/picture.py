"""The picture that the canary shows: one colour, as a data URL."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from functools import cache

__all__ = ["picture"]

SIDE = 224  # pixels: eight patches of 28, and sixteen of 14, which vision encoders cut pictures into
RED = bytes((200, 30, 30))


@cache
def picture() -> str:
    """Return a PNG of SIDE x SIDE red pixels as `data:image/png;base64,...`."""
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)  # 8 bits, RGB
    rows = (b"\0" + RED * SIDE) * SIDE  # each begins with its filter
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, 9)), _chunk(b"IEND", b""))
    return "data:image/png;base64," + b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
