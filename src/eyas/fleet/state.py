"""What eyas knows of its deployments, in SQLite: plans, launches, events. Survives every process that uses it.

Whether something really runs is never concluded from here: launches are looked for by their marks, and whether a
supervisor lives is said by the lock that it holds. Holds no secrets: plans only refer to them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from eyas.base.errors import UserError, nearest
from eyas.fleet.policy import Status
from eyas.recipes.plan import Plan

__all__ = ["ACTIVE", "Event", "LaunchRow", "Row", "Store", "home", "is_supervised", "lock"]

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE deployments (
    name TEXT PRIMARY KEY, token TEXT NOT NULL, plan TEXT NOT NULL, status TEXT NOT NULL, note TEXT NOT NULL,
    created REAL NOT NULL, changed REAL NOT NULL, ready_since REAL, was_ready INTEGER NOT NULL DEFAULT 0,
    restarts INTEGER NOT NULL DEFAULT 0, supervisor INTEGER
) STRICT;
CREATE TABLE launches (
    deployment TEXT NOT NULL REFERENCES deployments ON DELETE CASCADE, position INTEGER NOT NULL,
    mark TEXT NOT NULL, started REAL NOT NULL, PRIMARY KEY (deployment, position)
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, deployment TEXT NOT NULL REFERENCES deployments ON DELETE CASCADE,
    time REAL NOT NULL, status TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE INDEX events_of ON events (deployment, id);
"""
MAX_EVENTS = 1000  # of one deployment
BUSY_S = 10.0
ACTIVE: tuple[Status, ...] = ("starting", "ready", "unreachable", "restarting", "stopping")


class Row(Struct, frozen=True, kw_only=True):
    """One deployment. Times are seconds since 1970; `token` marks what belongs to it on the machines."""

    name: str
    token: str
    plan: Plan
    status: Status
    note: str
    created: float
    changed: float
    ready_since: float | None
    was_ready: bool
    restarts: int
    supervisor: int | None  # pid; valid only while the lock is held

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE


class LaunchRow(Struct, frozen=True):
    """A launch that was started and not stopped: its place in the plan, and what it is known by."""

    position: int
    mark: str
    started: float


class Event(Struct, frozen=True):
    id: int
    time: float
    status: Status
    text: str


def home(environ: Mapping[str, str]) -> Path:
    """`EYAS_HOME`, or `eyas` below the person's data folder. It is made. Raises UserError if it cannot be."""
    given = environ.get("EYAS_HOME")
    data = environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    folder = Path(given) if given else Path(data) / "eyas"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}; set EYAS_HOME to a folder of yours") from None
    return folder.absolute()


class Store:
    """The database in `folder`. For one thread; each process and thread opens its own."""

    def __init__(self, folder: Path) -> None:
        path = folder / "fleet.db"
        try:
            path.touch(mode=0o600)
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA foreign_keys=ON")
            with self._writing():
                (version,) = self._db.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    for statement in SCHEMA.split(";"):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cannot use {path}: {error}; set EYAS_HOME to a folder on a local disk") from None
        if version not in (0, SCHEMA_VERSION):
            raise UserError(f"{path} was written by another version of eyas; use that one, or move the file away")

    def close(self) -> None:
        self._db.close()

    # -- deployments ---------------------------------------------------------------------------------------------------

    def put(self, plan: Plan) -> Row:
        """Record a new start of `plan`, instead of an earlier deployment of its name."""
        name, now = plan.choice.name, time.time()
        with self._writing():
            self._db.execute("DELETE FROM deployments WHERE name = ?", (name,))
            self._db.execute(
                "INSERT INTO deployments (name, token, plan, status, note, created, changed) "
                "VALUES (?, ?, ?, 'starting', '', ?, ?)",
                (name, secrets.token_hex(8), msgspec.json.encode(plan).decode(), now, now),
            )
        return self.get(name)

    def find(self, name: str) -> Row | None:
        row = self._db.execute(f"{SELECT} WHERE name = ?", (name,)).fetchone()
        return None if row is None else _row(row)

    def get(self, name: str) -> Row:
        """Raises UserError with the nearest name if there is none of that name."""
        row = self.find(name)
        if row is None:
            names = self.names()
            known = f"; there are: {', '.join(names)}" if names else "; nothing was started yet"
            raise UserError(f"no deployment '{name}'{nearest(name, names) or known}")
        return row

    def names(self) -> list[str]:
        return [name for (name,) in self._db.execute("SELECT name FROM deployments ORDER BY created, name")]

    def rows(self) -> list[Row]:
        return [_row(row) for row in self._db.execute(f"{SELECT} ORDER BY created, name")]

    def remove(self, name: str) -> None:
        self._db.execute("DELETE FROM deployments WHERE name = ?", (name,))

    def renew(self, name: str) -> None:
        """A new start of the plan that is recorded, with what may be left of the last one still known."""
        self._db.execute(
            "UPDATE deployments SET status = 'starting', note = '', was_ready = 0, restarts = 0, ready_since = NULL "
            "WHERE name = ?",
            (name,),
        )

    def set_supervisor(self, name: str, pid: int | None) -> None:
        self._db.execute("UPDATE deployments SET supervisor = ? WHERE name = ?", (pid, name))

    def record(self, name: str, status: Status, text: str, *, is_restart: bool = False) -> None:
        """A new status with what there is to say about it, kept as an event, too."""
        now = time.time()
        with self._writing():
            self._db.execute(
                "UPDATE deployments SET status = :status, note = :text, changed = :now, restarts = restarts + :more, "
                "was_ready = was_ready OR :is_ready, ready_since = CASE WHEN :is_ready "
                "THEN coalesce(ready_since, :now) WHEN :status = 'unreachable' THEN ready_since END WHERE name = :name",
                {
                    "name": name,
                    "status": status,
                    "text": text,
                    "now": now,
                    "more": int(is_restart),
                    "is_ready": int(status == "ready"),
                },
            )
            self._db.execute(
                "INSERT INTO events (deployment, time, status, text) VALUES (?, ?, ?, ?)", (name, now, status, text)
            )
            self._db.execute(
                "DELETE FROM events WHERE deployment = ? AND id <= (SELECT max(id) FROM events) - ?", (name, MAX_EVENTS)
            )

    def events(self, name: str, after: int = 0) -> list[Event]:
        rows = self._db.execute(
            "SELECT id, time, status, text FROM events WHERE deployment = ? AND id > ? ORDER BY id", (name, after)
        )
        return [Event(*row) for row in rows]

    # -- launches ------------------------------------------------------------------------------------------------------

    def launched(self, name: str, position: int, mark: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO launches VALUES (?, ?, ?, ?)", (name, position, mark, time.time()))

    def stopped(self, name: str, position: int) -> None:
        self._db.execute("DELETE FROM launches WHERE deployment = ? AND position = ?", (name, position))

    def launches(self, name: str) -> list[LaunchRow]:
        rows = self._db.execute(
            "SELECT position, mark, started FROM launches WHERE deployment = ? ORDER BY position", (name,)
        )
        return [LaunchRow(*row) for row in rows]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


SELECT = (
    "SELECT name, token, plan, status, note, created, changed, ready_since, was_ready, restarts, supervisor "
    "FROM deployments"
)


def _row(columns: tuple[object, ...]) -> Row:
    values = dict(zip(Row.__struct_fields__, columns, strict=True))
    values["plan"] = msgspec.json.decode(str(values["plan"]), type=Plan)
    return msgspec.convert(values, Row, strict=False)


# -- who looks after a deployment --------------------------------------------------------------------------------------


def lock(folder: Path, name: str) -> int | None:
    """A file descriptor that holds the deployment until it is closed everywhere; None if somebody else holds it."""
    descriptor = os.open(_lock_path(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if is_supervised(folder, name):
            os.close(descriptor)
            return None
        time.sleep(0.01)  # somebody only looked


def is_supervised(folder: Path, name: str) -> bool:
    """Whether a process looks after the deployment just now."""
    descriptor = os.open(_lock_path(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock_path(folder: Path, name: str) -> Path:
    parent = folder / "supervisors"
    parent.mkdir(mode=0o700, exist_ok=True)
    return parent / f"{name}.lock"
