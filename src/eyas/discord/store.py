"""Keeps over restarts, in a small SQLite file, which questions are answered by which messages, and choices.

Only ids, choices and counts stand in it, no text of any message. Whatever happens to the file while the bot runs (a
full disk, a disk that went away) ends remembering, not answering: the same is kept in memory, of the newest questions.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from eyas.base.errors import UserError

__all__ = ["Choice", "Kept", "State", "Store"]

logger = logging.getLogger(__name__)

# shown: all of it is there, but for the reactions
State = Literal["answering", "shown", "ended"]
KEPT_S = 30 * 86400.0  # how long it is known which messages are one answer
MAX_IN_MEMORY = 10_000  # questions
SILENT_S = 600.0  # between two complaints about the file
LOCKED_S = 0.2  # how long a write waits for another process that looks into the file
TABLES = """
CREATE TABLE IF NOT EXISTS questions (
    question_id INTEGER PRIMARY KEY, channel_id INTEGER NOT NULL, person_id INTEGER NOT NULL,
    state TEXT NOT NULL, asked_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_state ON questions (state);
CREATE TABLE IF NOT EXISTS replies (
    reply_id INTEGER PRIMARY KEY, question_id INTEGER NOT NULL, place INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_question ON replies (question_id);
CREATE TABLE IF NOT EXISTS channels (channel_id INTEGER PRIMARY KEY, model TEXT, effort TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (
    day INTEGER NOT NULL, person_id INTEGER NOT NULL, tokens INTEGER NOT NULL, PRIMARY KEY (day, person_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS people (person_id INTEGER PRIMARY KEY, forgotten_to INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A question that is or was answered; `reply_ids` are the messages of the answer in their order."""

    question_id: int
    channel_id: int
    person_id: int
    state: State = "answering"
    reply_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The choice of people for a channel; None is what the settings say."""

    model: str | None = None
    effort: str | None = None


class Store:
    """The file at `path`. Raises UserError if it cannot be opened, is something else, or another bot has it."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._recent: OrderedDict[int, Kept] = OrderedDict()
        self._questions: dict[int, int] = {}  # by the ids of replies, of those in `_recent`
        self._path = path
        self._silent_until = 0.0
        self._lock = _locked(path)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_S)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")  # survives kill -9; a power failure may lose the last rows
            self._db.executescript(TABLES)
            self._choices = {
                row[0]: Choice(model=row[1], effort=row[2])
                for row in self._db.execute("SELECT channel_id, model, effort FROM channels")
            }
            self._forgotten = dict(self._db.execute("SELECT person_id, forgotten_to FROM people"))
        except sqlite3.Error as error:
            os.close(self._lock)
            raise UserError(f"cannot use {path} to remember answers: {error}; move it away or name another") from error
        self._prune()

    def close(self) -> None:
        """Close the file; another process may use it then."""
        self._db.close()
        os.close(self._lock)

    def begin(self, question: Kept) -> bool:
        """Keep that a question is answered from now on, or return False: it was begun before."""
        if self.find(question.question_id) is not None:
            return False
        self._remember(question)
        row = (question.question_id, question.channel_id, question.person_id, question.state, self._clock())
        self._write([("INSERT OR IGNORE INTO questions VALUES (?, ?, ?, ?, ?)", row)])
        return True

    def begin_again(self, question_id: int) -> Kept | None:
        """Begin to answer a question once more and return what is kept of it; None while it is being answered."""
        kept = self.find(question_id)
        if kept is None or kept.state != "ended":
            return None
        return self._set_state(kept, "answering")

    def set_replies(self, question_id: int, reply_ids: Sequence[int]) -> None:
        """Keep which messages are the answer."""
        kept = self.find(question_id)
        if kept is None or kept.reply_ids == tuple(reply_ids):
            return
        self._remember(replace(kept, reply_ids=tuple(reply_ids)))
        rows = [
            ("INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", (reply, question_id, place))
            for place, reply in enumerate(reply_ids)
        ]
        self._write([("DELETE FROM replies WHERE question_id = ?", (question_id,)), *rows])

    def shown(self, question_id: int) -> None:
        """Keep that an answer is all there, but for the reactions."""
        if (kept := self.find(question_id)) is not None and kept.state == "answering":
            self._set_state(kept, "shown")

    def end(self, question_id: int) -> None:
        """Keep that an answer is over, however it ended."""
        if (kept := self.find(question_id)) is not None:
            self._set_state(kept, "ended")

    def find(self, question_id: int) -> Kept | None:
        """Return what is kept of a question."""
        if (kept := self._recent.get(question_id)) is not None:
            return kept
        found = self._read("WHERE question_id = ?", (question_id,))
        return found[0] if found else None

    def find_reply(self, reply_id: int) -> Kept | None:
        """Return the question that a message of the bot belongs to."""
        if (question_id := self._questions.get(reply_id)) is not None:
            return self.find(question_id)
        where = "WHERE question_id = (SELECT question_id FROM replies WHERE reply_id = ?)"
        found = self._read(where, (reply_id,))
        return found[0] if found else None

    def unfinished(self) -> list[Kept]:
        """Return the questions that an earlier process was answering, if asked before the first is begun."""
        return self._read("WHERE state != 'ended' ORDER BY question_id", ())

    def choice(self, channel_id: int, parent_id: int | None = None) -> Choice:
        """Return what was chosen for a channel; what was not for a thread is as in its channel, `parent_id`."""
        own = self._choices.get(channel_id, Choice())
        around = Choice() if parent_id is None else self._choices.get(parent_id, Choice())
        return Choice(model=own.model or around.model, effort=own.effort or around.effort)

    def choose(self, channel_id: int, choice: Choice) -> None:
        """Keep what was chosen for a channel."""
        self._choices[channel_id] = choice
        row = (channel_id, choice.model, choice.effort)
        self._write([("INSERT OR REPLACE INTO channels VALUES (?, ?, ?)", row)])

    def forget(self, person_id: int, to: int) -> None:
        """Keep that messages of a person up to the id `to` are not to be used, and drop which were answered."""
        self._forgotten[person_id] = to
        gone = [one.question_id for one in self._recent.values() if one.person_id == person_id]
        for question_id in gone:
            if self._recent[question_id].state == "ended":
                self._drop(question_id)
        mine = "SELECT question_id FROM questions WHERE person_id = ? AND state = 'ended'"
        self._write(
            [
                ("INSERT OR REPLACE INTO people VALUES (?, ?)", (person_id, to)),
                (f"DELETE FROM replies WHERE question_id IN ({mine})", (person_id,)),
                ("DELETE FROM questions WHERE person_id = ? AND state = 'ended'", (person_id,)),
            ]
        )

    def forgotten_to(self, person_id: int) -> int:
        """Return the id up to which messages of a person are not to be used; 0 is none."""
        return int(self._forgotten.get(person_id, 0))

    def use(self, day: int, person_id: int, tokens: int) -> None:
        """Keep how many tokens a person has used on a day, and of no other day."""
        self._write(
            [
                ("DELETE FROM used WHERE day != ?", (day,)),
                ("INSERT OR REPLACE INTO used VALUES (?, ?, ?)", (day, person_id, tokens)),
            ]
        )

    def used(self, day: int) -> dict[int, int]:
        """Return the tokens that people have used on a day."""
        try:
            return dict(self._db.execute("SELECT person_id, tokens FROM used WHERE day = ?", (day,)))
        except sqlite3.Error as error:
            self._fails(error)
            return {}

    def _set_state(self, kept: Kept, state: State) -> Kept:
        kept = replace(kept, state=state)
        self._remember(kept)
        self._write([("UPDATE questions SET state = ? WHERE question_id = ?", (state, kept.question_id))])
        return kept

    def _remember(self, kept: Kept) -> None:
        old = self._recent.pop(kept.question_id, None)
        for reply in () if old is None else old.reply_ids:
            self._questions.pop(reply, None)
        self._recent[kept.question_id] = kept
        self._questions.update(dict.fromkeys(kept.reply_ids, kept.question_id))
        if len(self._recent) > MAX_IN_MEMORY:
            self._drop(next(iter(self._recent)))

    def _drop(self, question_id: int) -> None:
        for reply in self._recent.pop(question_id).reply_ids:
            self._questions.pop(reply, None)

    def _prune(self) -> None:
        old = (self._clock() - KEPT_S,)
        mine = "SELECT question_id FROM questions WHERE asked_at < ? AND state = 'ended'"
        self._write(
            [
                (f"DELETE FROM replies WHERE question_id IN ({mine})", old),
                ("DELETE FROM questions WHERE asked_at < ? AND state = 'ended'", old),
            ]
        )

    def _read(self, where: str, values: tuple[object, ...]) -> list[Kept]:
        try:
            rows = self._db.execute(
                f"SELECT question_id, channel_id, person_id, state FROM questions {where}", values
            ).fetchall()
            return [
                Kept(question_id=row[0], channel_id=row[1], person_id=row[2], state=row[3], reply_ids=self._ids(row[0]))
                for row in rows
            ]
        except sqlite3.Error as error:
            self._fails(error)
            return []

    def _ids(self, question_id: int) -> tuple[int, ...]:
        found = self._db.execute("SELECT reply_id FROM replies WHERE question_id = ? ORDER BY place", (question_id,))
        return tuple(row[0] for row in found)

    def _write(self, statements: Iterable[tuple[str, tuple[object, ...]]]) -> None:
        """Write all of it or nothing."""
        try:
            self._db.execute("BEGIN")
            for statement, values in statements:
                self._db.execute(statement, values)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._fails(error)
            with suppress(sqlite3.Error):  # there is none if it could not begin
                self._db.execute("ROLLBACK")

    def _fails(self, error: sqlite3.Error) -> None:
        now = self._clock()
        if now >= self._silent_until:
            logger.error("cannot use %s: %s; answers go on, but are not remembered over a restart", self._path, error)
            self._silent_until = now + SILENT_S


def _locked(path: Path) -> int:
    """Return the descriptor of a lock that ends with this process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"cannot use {path} to remember answers: {error.strerror}; name another") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(f"another bot uses {path}; stop it, or name another file for this one") from None
    return descriptor
