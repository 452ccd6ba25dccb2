"""Reads the bot's file again when it has changed. What is wrong then is said once, and the old settings stay."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from eyas.base.errors import UserError
from eyas.discord.settings.reader import read
from eyas.discord.settings.schema import Settings

__all__ = ["Reload", "SettingsFile"]

AT_START = ("token_env", "message_content", "state", "metrics")  # read when the bot starts, and not again
RACE_S = 2.0  # a file that is younger may change again within the tick of its time, the size being the same


@dataclass(frozen=True, kw_only=True, slots=True)
class Reload:
    """The outcome of reading a changed file. `problem` is None where its settings hold from now on."""

    settings: Settings
    changed: tuple[str, ...] = ()  # keys at the top of the file
    waits: tuple[str, ...] = ()  # those of them that hold after a restart
    problem: str | None = None


class SettingsFile:
    """A file and the settings that hold: those of its last valid state. Raises UserError if the first one is wrong."""

    def __init__(self, path: Path, environ: Mapping[str, str], *, wall_time: Callable[[], float] = time.time) -> None:
        self._path, self._environ, self._wall_time = path, environ, wall_time
        self._mark = self._look()
        self._digest = self._read_digest()
        self.settings = read(path, environ)

    def reload(self) -> Reload | None:
        """Read the file if it has changed since the last call; None if it has not, or holds the same as before.

        A file that is not there, as between the two steps of an editor that saves, is waited for.
        """
        mark = self._look()
        if mark is None or (mark == self._mark and self._wall_time() - mark[0] / 1e9 > RACE_S):
            return None
        digest = self._read_digest()
        self._mark = mark
        if digest is None or digest == self._digest:
            return None
        self._digest = digest
        try:
            found = read(self._path, self._environ)
        except UserError as error:
            return Reload(settings=self.settings, problem=str(error))
        names = [item.name for item in fields(Settings)]
        changed = tuple(name for name in names if getattr(found, name) != getattr(self.settings, name))
        self.settings = found
        return Reload(settings=found, changed=changed, waits=tuple(name for name in changed if name in AT_START))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read_digest(self) -> bytes | None:
        """Return a digest of the file's bytes, None if it cannot be read or is too large to be one."""
        try:
            with self._path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError:
            return None
