"""The file of a run: one JSON line of where it comes from, then one for each window, written as soon as it is there.

A line that was cut by a full disk or a kill is left out when the file is read, and overwritten by what comes next.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from eyas.base.errors import UserError
from eyas.bench.endpoint.records import Stamp, Window

__all__ = ["Header", "Journal", "Run", "read_run"]


class Header(Struct, frozen=True, kw_only=True):
    """Origin and settings of a run. `run` tells it from all others."""

    stamp: Stamp
    settings: dict[str, Any]
    run: str


class Run(Struct, frozen=True, kw_only=True):
    """A run as its file has it."""

    header: Header
    windows: tuple[Window, ...]


class _Line(Struct, omit_defaults=True):
    header: Header | None = None
    window: Window | None = None


class Journal:
    """Appends to a file; without a path nothing is kept on disk. Raises UserError where that cannot be written."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def begin(self, header: Header) -> None:
        """Begin a file that is not there yet."""
        if self.path is None:
            return
        try:
            self._file = self.path.open("xb")
        except FileExistsError:
            raise UserError(f"{self.path} is there already; go on with it by --resume, or name another file") from None
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror}") from None
        self._append(_Line(header=header))

    def resume(self) -> Run:
        """Return what is there, and go on behind it."""
        if self.path is None:
            raise UserError("--resume goes on with a file; name it with --out")
        run, size = _read(self.path)
        try:
            self._file = self.path.open("r+b")
            self._file.truncate(size)
            self._file.seek(size)
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror}") from None
        return run

    def add(self, window: Window) -> None:
        """Append a window; it is on the disk when this returns."""
        if self._file is not None:
            self._append(_Line(window=window))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, line: _Line) -> None:
        assert self._file is not None
        size = self._file.tell()
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            why = (
                f"{self.path} cannot be written: {error.strerror}; what was measured before is in it, go on by --resume"
            )
            self._forget(size)
            raise UserError(why) from None

    def _forget(self, size: int) -> None:
        """Leave the file, without the half of a line where that can be cut off; what is buffered is lost."""
        assert self._file is not None and self.path is not None
        file, self._file = self._file, None
        try:
            os.ftruncate(file.fileno(), size)
            file.close()
        except OSError:  # closing writes what is buffered once more
            pass


def read_run(path: Path) -> Run:
    """Read a file of a run. Raises UserError for what is none."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Run, int]:
    """Return a run, and how many bytes of its file are whole lines."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; give the file of a run (--out)") from None
    header: Header | None = None
    windows: list[Window] = []
    size = 0
    for number, raw in enumerate(data.splitlines(keepends=True), 1):
        if not raw.endswith(b"\n"):
            break
        try:
            line = msgspec.json.decode(raw, type=_Line)
        except msgspec.MsgspecError as error:
            raise UserError(f"{path}, line {number}: no line of a run ({error})") from None
        size += len(raw)
        header = header or line.header
        if line.window is not None:
            windows.append(line.window)
    if header is None:
        raise UserError(f"{path} is no file of a run; give one that 'eyas bench endpoint --out' has written")
    return Run(header=header, windows=tuple(windows)), size
