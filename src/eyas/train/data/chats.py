"""Reads files of chats: JSONL, one chat a line, within limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from eyas.base.errors import InvalidRequest, UserError
from eyas.train.data.records import Chat, chat_of

__all__ = ["MAX_LINE_BYTES", "read_chats"]

MAX_LINE_BYTES = 64 << 20


def read_chats(paths: Iterable[Path]) -> Iterator[Chat]:
    """Yield the chats of JSONL files in order, one line in memory at a time; empty lines are passed over.

    Raises UserError naming file, line and field: for an unreadable file, a line that is too long, no JSON, or no chat.
    """
    for path in paths:
        try:
            with path.open("rb") as file:
                for number, line in _lines(file, path):
                    yield _chat(line, f"{path}:{number}")
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror or error}); give a JSONL file of chats") from error


def _lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise UserError(f"{path}:{number} has more than {MAX_LINE_BYTES >> 20} MiB; one line is one chat")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        if line.strip():
            yield number, line


def _chat(line: bytes, source: str) -> Chat:
    try:
        return chat_of(json.loads(line.decode("utf-8")), source=source)
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8: byte 0x{line[error.start]:02x} at position {error.start}") from error
    except InvalidRequest as error:
        raise UserError(f"{source}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not JSON: {error}") from error
