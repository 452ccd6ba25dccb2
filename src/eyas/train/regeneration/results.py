"""Writes regenerated chats so that a run may end at any moment and go on: a file of chats, and one of the run itself.

`OUT` has one JSON line a chat, in the order in which they were finished; `source.line` is its line in the input.
`OUT.run` is one line of JSON with the input's hash and the settings that decide answers, then one line for each
chat that left nothing to train on. A last line without its end, as kill -9 or a full disk leaves it, is cut off.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from eyas.base.errors import UserError
from eyas.train.regeneration.turns import Chat, End

__all__ = ["Counts", "Results"]

RUN_SUFFIX = ".run"
FORMAT = 1


@dataclass(kw_only=True, slots=True)
class Counts:
    """Sums over chats. Tokens are those of the endpoint's `usage`, of cut answers too."""

    chats: int = 0  # that are in the file
    answers: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    ended_at_call: int = 0
    cut: int = 0
    refused: int = 0  # a later turn
    empty: int = 0  # cut before anything was answered: not in the file

    def add(self, source: Mapping[str, Any], *, is_kept: bool) -> None:
        """Add a chat by its `source`. Raises LookupError, TypeError and ValueError for another's."""
        end = End(source["end"])
        self.chats += is_kept
        self.empty += not is_kept
        self.answers += source["answers"]
        self.prompt_tokens += source["prompt_tokens"]
        self.tokens += source["tokens"]
        self.ended_at_call += end is End.CALL
        self.cut += end is End.CUT
        self.refused += end is End.REFUSED


class Results:
    """The two files of a run, locked while they are open.

    `described` is what must be the same when a run goes on: names as a person knows them, and JSON values.
    """

    def __init__(self, path: Path, *, num_lines: int, described: Mapping[str, Any]) -> None:
        """Open a new run, or one that goes on. Raises UserError: other settings, other files, another process."""
        self.path, self.run_path = path, path.with_name(path.name + RUN_SUFFIX)
        self.counts = Counts()
        self._is_done = bytearray(num_lines + 1)
        self._files: list[int] = []
        try:
            self._open(described)
        except OSError as error:
            self.close()
            raise UserError(f"cannot write {error.filename or path}: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_done(self) -> int:
        return self.counts.chats + self.counts.empty

    def is_done(self, line: int) -> bool:
        return bool(self._is_done[line])

    def add(self, chat: Chat, *, effort: str | None) -> None:
        """Append a chat; it is in the file when this returns. Raises UserError if the disk is full."""
        source = {
            "line": chat.prompt.line,
            "end": chat.end.value,
            "answers": chat.num_answers,
            "prompt_tokens": chat.num_prompt,
            "tokens": chat.num_tokens,
        }
        if chat.messages:
            optional = {"tools": chat.prompt.tools, "reasoning_effort": effort}
            given = {name: value for name, value in optional.items() if value is not None}
            _append(self._chats, self.path, {"messages": chat.messages} | given | {"source": source})
        else:
            _append(self._run, self.run_path, {"source": source})
        self._is_done[chat.prompt.line] = True
        self.counts.add(source, is_kept=bool(chat.messages))

    def close(self) -> None:
        """Bring the files to the disk, and let other processes have them."""
        while self._files:
            file = self._files.pop()
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def _open(self, described: Mapping[str, Any]) -> None:
        self._run = self._opened(self.run_path)
        try:
            fcntl.flock(self._run, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.path} is being written by another run") from None
        header = {"eyas_regenerate": FORMAT, **described}
        if not self.path.exists():
            os.ftruncate(self._run, 0)  # a file of chats that was removed: from the beginning
            _append(self._run, self.run_path, header)
            self._chats = self._opened(self.path)
            return
        lines = _whole_lines(self._run, self.run_path)
        found = next(lines, None)
        if not isinstance(found, dict) or found.get("eyas_regenerate") != FORMAT:
            if not os.fstat(self._run).st_size:
                self.run_path.unlink()
            raise UserError(
                f"{self.path} exists, and {self.run_path} does not say which run it is of; choose another file"
            )
        for name in [*described, *found]:
            if found.get(name) != header.get(name):
                raise UserError(
                    f"{self.path} was begun with another {name} ({found.get(name)}, now {header.get(name)}); "
                    "give the same, or choose another file"
                )
        self._chats = self._opened(self.path)
        self._read(lines, self.run_path, is_kept=False)
        self._read(_whole_lines(self._chats, self.path), self.path, is_kept=True)

    def _opened(self, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._files.append(file)
        return file

    def _read(self, values: Iterator[Any], path: Path, *, is_kept: bool) -> None:
        for value in values:
            try:
                source = value["source"]
                line = source["line"]
                if line < 1 or self._is_done[line]:
                    raise ValueError
                self.counts.add(source, is_kept=is_kept)
            except (LookupError, TypeError, ValueError):
                raise UserError(f"{path} has lines that no run of 'regenerate' wrote; choose another file") from None
            self._is_done[line] = True


def _whole_lines(file: int, path: Path) -> Iterator[Any]:
    """Yield the JSON values of a file's lines, and cut off a last line without its end."""
    end = 0
    with os.fdopen(os.dup(file), "rb") as reader:
        reader.seek(0)
        for number, line in enumerate(reader, 1):
            if not line.endswith(b"\n"):
                os.ftruncate(file, end)
                return
            end += len(line)
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                raise UserError(f"{path}, line {number}: no JSON; choose another file") from None


def _append(file: int, path: Path, value: Any) -> None:
    """Append one line whole, or not at all."""
    line = json.dumps(value, ensure_ascii=False).encode() + b"\n"
    size = os.fstat(file).st_size
    left = memoryview(line)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError as error:
        os.ftruncate(file, size)
        raise UserError(f"cannot write {path}: {error.strerror}") from None
