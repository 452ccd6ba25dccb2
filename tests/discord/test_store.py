"""What the bot keeps over restarts: each question is begun once, whatever happens to the file or the process."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from eyas.base.errors import UserError
from eyas.discord.store import KEPT_S, Choice, Kept, Store

DAY_S = 86400.0


def kept(question_id: int, person_id: int = 7) -> Kept:
    return Kept(question_id=question_id, channel_id=5, person_id=person_id)


class Restarts(RuleBasedStateMachine):
    """A store beside a plain dictionary, opened again at any moment."""

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "bot.sqlite"
        self.store = Store(self.path)
        self.known: dict[int, Kept] = {}

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(question=st.integers(1, 6), person=st.integers(1, 2))
    def asks(self, question: int, person: int) -> None:
        new = kept(question, person)
        assert self.store.begin(new) == (question not in self.known)
        self.known.setdefault(question, new)

    @rule(question=st.integers(1, 6), num=st.integers(0, 3))
    def replies(self, question: int, num: int) -> None:
        ids = tuple(100 * question + place for place in range(num))
        self.store.set_replies(question, ids)
        if question in self.known:
            self.known[question] = self._with(question, reply_ids=ids)

    @rule(question=st.integers(1, 6))
    def ends(self, question: int) -> None:
        self.store.end(question)
        if question in self.known:
            self.known[question] = self._with(question, state="ended")

    @rule(question=st.integers(1, 6))
    def begins_again(self, question: int) -> None:
        found = self.store.begin_again(question)
        may = question in self.known and self.known[question].state == "ended"
        assert (found is not None) == may
        if may:
            self.known[question] = self._with(question, state="answering")

    @rule(person=st.integers(1, 2))
    def forgets(self, person: int) -> None:
        self.store.forget(person, to=1000)
        for question, one in list(self.known.items()):
            if one.person_id == person and one.state == "ended":
                del self.known[question]
        assert self.store.forgotten_to(person) == 1000

    @rule()
    def restarts(self) -> None:
        self.store.close()
        self.store = Store(self.path)

    @invariant()
    def is_the_same(self) -> None:
        if hasattr(self, "store"):
            assert {one: self.store.find(one) for one in range(1, 7)} == {
                one: self.known.get(one) for one in range(1, 7)
            }
            answering = sorted(one for one, found in self.known.items() if found.state == "answering")
            assert [one.question_id for one in self.store.unfinished()] == answering
            for one in self.known.values():
                assert all(self.store.find_reply(reply) == one for reply in one.reply_ids)

    def _with(self, question: int, **changes: object) -> Kept:
        from dataclasses import replace

        return replace(self.known[question], **changes)


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_choices_stay(tmp_path):
    store = Store(tmp_path / "bot.sqlite")
    store.choose(5, Choice(model="route/MATH", effort="high"))
    store.close()
    store = Store(tmp_path / "bot.sqlite")
    assert store.choice(5) == Choice(model="route/MATH", effort="high") and store.choice(6) == Choice()
    store.close()


def test_old_answers_go_and_unfinished_ones_stay(tmp_path):
    now = 1000.0
    store = Store(tmp_path / "bot.sqlite", clock=lambda: now)
    for question in (1, 2):
        store.begin(kept(question))
    store.set_replies(1, [11])
    store.end(1)
    store.close()
    now += KEPT_S + DAY_S
    store = Store(tmp_path / "bot.sqlite", clock=lambda: now)
    assert store.find(1) is None and store.find_reply(11) is None
    assert [one.question_id for one in store.unfinished()] == [2]
    store.close()


def test_a_full_disk_ends_remembering_and_not_answering(tmp_path, caplog):
    path = tmp_path / "bot.sqlite"
    store = Store(path)
    store._db.execute(f"PRAGMA max_page_count = {store._db.execute('PRAGMA page_count').fetchone()[0]}")
    for question in range(1, 400):
        assert store.begin(kept(question)) and not store.begin(kept(question))
        store.set_replies(question, [10_000 + question])
        assert store.find_reply(10_000 + question).question_id == question
        store.end(question)
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "full" in caplog.text
    store._db.execute("PRAGMA max_page_count = 100000")
    store.begin(kept(999))
    store.close()
    store = Store(path)
    assert store.find(999) == kept(999)
    store.close()


def test_a_second_bot_is_refused(tmp_path):
    store = Store(tmp_path / "bot.sqlite")
    with pytest.raises(UserError, match="another bot uses"):
        Store(tmp_path / "bot.sqlite")
    store.close()
    Store(tmp_path / "bot.sqlite").close()


def test_a_file_that_is_something_else(tmp_path):
    path = tmp_path / "bot.sqlite"
    path.write_text("this is no database, but a text that is long enough to be looked at" * 20)
    with pytest.raises(UserError, match=r"cannot use .* move it away"):
        Store(path)
    assert path.read_text().startswith("this is no database")


def test_what_was_begun_is_there_after_a_kill(tmp_path):
    """The process dies at any moment; whatever it has said that it has begun is in the file."""
    script = (
        "import sys; from pathlib import Path; from eyas.discord.store import Kept, Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for one in range(1, 10**6):\n"
        "    store.begin(Kept(question_id=one, channel_id=5, person_id=7)); print(one, flush=True)\n"
    )
    path = tmp_path / "bot.sqlite"
    for delay_s in (0.02, 0.1):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s)
        os.kill(process.pid, signal.SIGKILL)
        said = [int(line) for line in process.communicate()[0].split("\n")[:-1]]
        store = Store(path)
        assert {one.question_id for one in store.unfinished()} >= set(said)
        store.close()


def test_somebody_looks_into_the_file(tmp_path, caplog):
    """A reader does not disturb; a writer that holds the file costs memory of that moment only."""
    store = Store(tmp_path / "bot.sqlite")
    other = sqlite3.connect(tmp_path / "bot.sqlite")
    other.execute("BEGIN IMMEDIATE")
    assert store.begin(kept(1)) and not store.begin(kept(1))
    assert "locked" in caplog.text
    other.rollback()
    other.close()
    assert store.begin(kept(2))
    store.close()
