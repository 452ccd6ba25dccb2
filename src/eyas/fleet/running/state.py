"""Stores what eyas knows of its deployments in SQLite: plans, launches, events. Survives every process that uses it.

Whether something really runs is never concluded from here: launches are looked for by their marks, and who looks after
a deployment is said by its lock file alone. Holds no secrets: plans only refer to them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from eyas.base.errors import UserError, nearest
from eyas.fleet.running.policy import Status
from eyas.recipes.plan import Plan

__all__ = [
    "ACTIVE",
    "Event",
    "LaunchRow",
    "Row",
    "Standing",
    "StateError",
    "Store",
    "holder",
    "is_supervised",
    "lock",
    "sign",
]

SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE deployments (
    name TEXT PRIMARY KEY, token TEXT NOT NULL, plan TEXT NOT NULL, status TEXT NOT NULL, note TEXT NOT NULL,
    created REAL NOT NULL, changed REAL NOT NULL, ready_since REAL, was_ready INTEGER NOT NULL DEFAULT 0,
    restarts INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE launches (
    deployment TEXT NOT NULL REFERENCES deployments ON DELETE CASCADE, position INTEGER NOT NULL,
    mark TEXT NOT NULL, name TEXT NOT NULL, node TEXT NOT NULL, ssh TEXT, stop TEXT NOT NULL,
    PRIMARY KEY (deployment, position)
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, deployment TEXT NOT NULL REFERENCES deployments ON DELETE CASCADE,
    time REAL NOT NULL, status TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE INDEX events_of ON events (deployment, id);
"""
MAX_EVENTS = 1000  # of one deployment
BUSY_S = 10.0
SIGNATURE = 40  # characters
ACTIVE: tuple[Status, ...] = ("starting", "ready", "hung", "unreachable", "restarting", "stopping")


class StateError(UserError):
    """The database cannot be read or written just now, e.g. because the disk is full."""


class Standing(Struct, frozen=True, kw_only=True):
    """Status of a deployment. Times are seconds since 1970; `token` marks what belongs to it on the machines."""

    name: str
    token: str
    status: Status
    note: str
    created: float
    changed: float
    ready_since: float | None
    was_ready: bool
    restarts: int

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE


class Row(Standing, frozen=True, kw_only=True):
    """A deployment with its plan."""

    plan: Plan


class LaunchRow(Struct, frozen=True):
    """A launch that was started and not stopped: its place in the plan, what it is known by, on which machine, and the
    script that stops it there, so that stopping needs no plan."""

    position: int
    mark: str
    name: str
    node: str
    ssh: str | None
    stop: str


class Event(Struct, frozen=True):
    id: int
    time: float
    status: Status
    text: str


class Store:
    """The database in `folder`. For one thread; each process and thread opens its own."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "fleet.db"
        try:
            self._path.touch(mode=0o600)
            self._db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from None
        self._inode = self._path.stat().st_ino
        self._do("PRAGMA foreign_keys=ON")
        version = self._version()
        if version == 0:
            with self._writing():
                version = self._version()
                for statement in SCHEMA.split(";") if version == 0 else ():
                    self._do(statement)
                self._do(f"PRAGMA user_version={SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise UserError(
                f"{self._path} was written by another version of eyas; stop with that one what still runs, then move "
                "the file away"
            )

    def close(self) -> None:
        self._db.close()

    def is_gone(self) -> bool:
        """Whether the database was deleted, or another stands in its place: then nothing recorded is found again."""
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True
        except OSError:  # a disk that does not answer may come back
            return False

    # -- deployments ---------------------------------------------------------------------------------------------------

    def put(self, plan: Plan) -> Row:
        """Record a new start of `plan`, instead of an earlier deployment of its name."""
        name, now = plan.choice.name, time.time()
        with self._writing():
            self._do("DELETE FROM deployments WHERE name = ?", (name,))
            self._do(
                "INSERT INTO deployments (name, token, plan, status, note, created, changed) "
                "VALUES (?, ?, ?, 'starting', '', ?, ?)",
                (name, secrets.token_hex(8), msgspec.json.encode(plan).decode(), now, now),
            )
        return self.get(name)

    def find(self, name: str) -> Row | None:
        """Find a deployment. Raises UserError if it is up and its plan cannot be read; None if it is not up then."""
        found = self._do(f"{SELECT} WHERE name = ?", (name,))
        row = _row(found[0]) if found else None
        standing = self.standing(name)
        if row is None and standing is not None and (standing.is_active or self.launches(name)):
            raise UserError(f"the plan of {name} is of another version of eyas; stop it first: eyas down {name}")
        return row

    def get(self, name: str) -> Row:
        """Find a deployment. Raises UserError with the nearest name if there is none of that name."""
        row = self.find(name)
        if row is None:
            names = self.names()
            known = f"; there are: {', '.join(names)}" if names else "; nothing was started yet"
            raise UserError(f"no deployment '{name}'{nearest(name, names) or known}")
        return row

    def standing(self, name: str) -> Standing | None:
        """Return the status of a deployment, whether or not its plan can be read."""
        found = self._do(f"{SELECT} WHERE name = ?", (name,))
        return _standing(found[0]) if found else None

    def names(self) -> list[str]:
        return [name for (name,) in self._do("SELECT name FROM deployments ORDER BY created, name")]

    def rows(self) -> list[Row]:
        """List the deployments whose plan can be read."""
        found = map(_row, self._do(f"{SELECT} ORDER BY created, name"))
        return [row for row in found if row is not None]

    def renew(self, name: str) -> None:
        """Record a new start of the recorded plan; what may be left of the last one stays known."""
        self._do(
            "UPDATE deployments SET status = 'starting', note = '', was_ready = 0, restarts = 0, ready_since = NULL "
            "WHERE name = ?",
            (name,),
        )

    def record(self, name: str, status: Status, text: str, *, restarts: int = 0) -> None:
        """Record a new status with a note, as an event too, and count `restarts` more."""
        now = time.time()
        with self._writing():
            self._do(
                "UPDATE deployments SET status = :status, note = :text, changed = :now, restarts = restarts + :more, "
                "was_ready = was_ready OR :is_ready, ready_since = CASE WHEN :is_ready "
                "THEN coalesce(ready_since, :now) WHEN :status IN ('hung', 'unreachable') THEN ready_since END "
                "WHERE name = :name",
                {
                    "name": name,
                    "status": status,
                    "text": text,
                    "now": now,
                    "more": restarts,
                    "is_ready": int(status == "ready"),
                },
            )
            self._do(
                "INSERT INTO events (deployment, time, status, text) VALUES (?, ?, ?, ?)", (name, now, status, text)
            )
            self._do(
                "DELETE FROM events WHERE deployment = ? AND id <= (SELECT max(id) FROM events) - ?", (name, MAX_EVENTS)
            )

    def events(self, name: str, after: int = 0) -> list[Event]:
        rows = self._do(
            "SELECT id, time, status, text FROM events WHERE deployment = ? AND id > ? ORDER BY id", (name, after)
        )
        return [Event(*row) for row in rows]

    # -- launches ------------------------------------------------------------------------------------------------------

    def launched(self, name: str, launch: LaunchRow) -> None:
        values = (name, *msgspec.structs.astuple(launch))
        self._do(f"INSERT OR REPLACE INTO launches (deployment, {LAUNCH}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def stopped(self, name: str, position: int) -> None:
        self._do("DELETE FROM launches WHERE deployment = ? AND position = ?", (name, position))

    def launches(self, name: str) -> list[LaunchRow]:
        rows = self._do(f"SELECT {LAUNCH} FROM launches WHERE deployment = ? ORDER BY position", (name,))
        return [LaunchRow(*row) for row in rows]

    # ------------------------------------------------------------------------------------------------------------------

    def _do(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> StateError:
        return StateError(f"cannot use {self._path}: {error}; EYAS_HOME can name another folder, on a local disk")

    def _version(self) -> int:
        return int(self._do("PRAGMA user_version")[0][0])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._do("BEGIN IMMEDIATE")
        try:
            yield
            self._do("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite has done so itself where the disk is full
                self._db.execute("ROLLBACK")
            raise


LAUNCH = ", ".join(LaunchRow.__struct_fields__)
SELECT = f"SELECT {', '.join(Standing.__struct_fields__)}, plan FROM deployments"


def _standing(columns: tuple[object, ...]) -> Standing:
    return msgspec.convert(dict(zip(Standing.__struct_fields__, columns, strict=False)), Standing, strict=False)


def _row(columns: tuple[object, ...]) -> Row | None:
    """Read a row; None if its plan is of another version."""
    try:
        plan = msgspec.json.decode(str(columns[-1]), type=Plan)
    except msgspec.MsgspecError:
        return None
    return Row(**msgspec.structs.asdict(_standing(columns)), plan=plan)


# -- who looks after a deployment --------------------------------------------------------------------------------------


def lock(folder: Path, name: str) -> int | None:
    """Return a file descriptor that locks the deployment until closed everywhere; None if it is locked already."""
    path = _lock_path(folder, name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            return descriptor
        if is_supervised(folder, name):
            os.close(descriptor)
            return None
        time.sleep(0.01)  # another process may only have tested the lock


def sign(descriptor: int, pid: int) -> None:
    """Write the process that SIGTERM ends cleanly into a lock that is held: its pid and kernel start time."""
    with suppress(OSError):  # a full disk; the lock counts all the same
        os.pwrite(descriptor, f"{pid} {_start_time(pid)}".ljust(SIGNATURE).encode(), 0)


def holder(folder: Path, name: str) -> int | None:
    """Return the process that has signed the lock of a deployment; None where none has, or it has ended."""
    try:
        pid, start = map(int, _lock_path(folder, name).read_text().split())
    except (OSError, ValueError):
        return None
    return pid if _start_time(pid) == start else None


def is_supervised(folder: Path, name: str) -> bool:
    """Whether a process supervises the deployment at the moment, or is about to start it."""
    try:
        file = _lock_path(folder, name).open("rb")
    except FileNotFoundError:
        return False
    with closing(file):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_path(folder: Path, name: str) -> Path:
    return folder / "supervisors" / f"{name}.lock"


def _start_time(pid: int) -> int:
    """Return a process's start time in ticks since boot; 0 if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()[19])
    except OSError:
        return 0
