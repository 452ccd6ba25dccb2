"""The canary's picture: a PNG that another program reads."""

import struct
import subprocess
import sys
import zlib
from base64 import b64decode

import pytest

from eyas.client.endpoint.picture import RED, SIDE, picture


def test_its_chunks_are_those_of_a_png():
    """Read by the specification (W3C PNG, 5.3): length, type, data, CRC of type and data."""
    data = b64decode(picture().partition(",")[2], validate=True)
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) < 2000
    chunks, rest = {}, data[8:]
    while rest:
        (length,) = struct.unpack(">I", rest[:4])
        kind, content, (crc,) = rest[4:8], rest[8 : 8 + length], struct.unpack(">I", rest[8 + length : 12 + length])
        assert crc == zlib.crc32(kind + content)
        chunks[kind], rest = content, rest[12 + length :]
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert zlib.decompress(chunks[b"IDAT"]) == (b"\0" + RED * SIDE) * SIDE


def test_pillow_reads_it():
    pytest.importorskip("PIL")
    code = (
        "import base64, io, sys; from PIL import Image; "
        "image = Image.open(io.BytesIO(base64.b64decode(sys.stdin.read().partition(',')[2]))); image.load(); "
        "print(image.size, image.getcolors())"
    )
    out = subprocess.run([sys.executable, "-c", code], input=picture(), capture_output=True, text=True, check=True)
    assert out.stdout.strip() == f"{(SIDE, SIDE)} [({SIDE * SIDE}, {tuple(RED)})]"
