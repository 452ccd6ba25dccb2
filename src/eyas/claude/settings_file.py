"""Writes into a settings file on disk and undoes it: atomically, with a record of what was done in the state folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from eyas.base.errors import UserError
from eyas.claude import merge
from eyas.claude.merge import Change, Settings

__all__ = ["SettingsFile"]

EMPTY = "{}\n"
MODE = 0o600  # of files that were not there


@dataclass(frozen=True, kw_only=True, slots=True)
class _Record:
    """`is_new`: the file was not there before; `has_new_folder`: neither was its folder."""

    is_new: bool
    has_new_folder: bool
    changes: tuple[Change, ...]


class SettingsFile:
    """The settings file at `path`; a link is followed and stays one. Records lie in `home`, one for each file."""

    def __init__(self, path: Path, home: Path) -> None:
        try:
            self.path = path.expanduser().resolve()
        except (OSError, RuntimeError) as error:
            raise UserError(f"{path}: {error}") from None
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:32]
        self._record_path = home / "claude" / f"{digest}.json"

    def write(self, settings: Settings) -> None:
        """Merge `settings` into the file; what an earlier call did is undone first. Raises UserError."""
        record = self._record()
        try:
            content = self._content()
            text = EMPTY if content is None else self._decode(content)
            if record is not None:
                text, _ = merge.undo(text, record.changes)
            merge.write(text, settings)  # raises before anything is changed
        except UserError as error:
            raise self._left_alone(error) from None
        if record is not None:
            self.undo()
        content = self._content()
        text, changes = merge.write(EMPTY if content is None else self._decode(content), settings)
        folder = self.path.parent
        record = _Record(is_new=content is None, has_new_folder=not folder.exists(), changes=tuple(changes))
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._record_path.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {error.filename}: {error.strerror}") from None
        _replace(self._record_path, (json.dumps({"path": str(self.path), **asdict(record)}, indent=1) + "\n").encode())
        _replace(self.path, text.encode())

    def undo(self) -> list[str]:
        """Take out what `write` put in; return the names of settings that were changed since and stay as they are.

        Raises UserError, also if there is nothing to undo.
        """
        record = self._record()
        if record is None:
            raise UserError(f"nothing to undo: eyas has written nothing into {self.path}")
        content = self._content()
        kept: list[str] = []
        if content is not None:
            try:
                text, kept = merge.undo(self._decode(content), record.changes)
            except UserError as error:
                raise self._left_alone(error) from None
            if record.is_new and json.loads(text) == {}:
                _unlink(self.path)
            elif text.encode() != content:
                _replace(self.path, text.encode())
        _unlink(self._record_path)
        if record.has_new_folder:
            with suppress(OSError):  # there is something else in it
                self.path.parent.rmdir()
        return kept

    def _left_alone(self, error: UserError) -> UserError:
        return UserError(f"{self.path} is left alone: {error}")

    def _content(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from None

    def _decode(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"it is no JSON ({error})") from None

    def _record(self) -> _Record | None:
        try:
            content = json.loads(self._record_path.read_bytes())
            changes = [Change(**{**change, "path": tuple(change["path"])}) for change in content["changes"]]
            return _Record(is_new=content["is_new"], has_new_folder=content["has_new_folder"], changes=tuple(changes))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"cannot read {self._record_path}: {error.strerror}") from None
        except (ValueError, LookupError, TypeError):
            raise UserError(f"{self._record_path} cannot be read; it says what to undo in {self.path}") from None


def _replace(path: Path, content: bytes) -> None:
    """Put `content` into the file at once; its owner and mode stay. Raises UserError, and then nothing has changed."""
    name = None
    try:
        old = path.stat() if path.exists() else None
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            name = file.name
            file.write(content)
            file.flush()
            if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), MODE if old is None else old.st_mode & 0o7777)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise UserError(f"cannot remove {path}: {error.strerror}") from None
