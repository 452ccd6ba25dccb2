"""The state in SQLite, used by several processes; and the lock that says who looks after a deployment."""

import os
import sqlite3
import threading

import pytest
from tests.fleet.support.lab import engine, make_plan

from eyas.base.errors import UserError
from eyas.base.settings.home import home
from eyas.fleet.running import state
from eyas.fleet.running.state import LaunchRow, StateError, Store, holder, is_supervised, lock, sign
from eyas.recipes.plan import Launch


def plan(name="lab"):
    return make_plan("/srv/lab", 8000, (Launch(name="server", argv=engine()),), name=name)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.close()


def test_survives_the_process(store, tmp_path):
    row = store.put(plan())
    launch = LaunchRow(0, "process 1 2 3", "server", "here", None, "exit 0")
    store.launched("lab", launch)
    store.record("lab", "ready", "all is well")
    again = Store(tmp_path)
    assert again.get("lab").plan == row.plan and again.get("lab").status == "ready"
    assert again.launches("lab") == [launch]
    assert [(event.status, event.text) for event in again.events("lab")] == [("ready", "all is well")]
    again.close()
    assert (tmp_path / "fleet.db").stat().st_mode & 0o077 == 0


def test_ready_since_and_restarts(store):
    store.put(plan())
    store.record("lab", "ready", "")
    since = store.get("lab").ready_since
    store.record("lab", "unreachable", "")
    store.record("lab", "hung", "")
    store.record("lab", "ready", "")
    assert store.get("lab").ready_since == since and store.get("lab").was_ready
    store.record("lab", "restarting", "", restarts=1)
    assert store.get("lab").ready_since is None and store.get("lab").restarts == 1
    store.renew("lab")
    assert not store.get("lab").was_ready and store.get("lab").restarts == 0


def test_a_new_start_is_a_new_deployment(store):
    first = store.put(plan())
    store.launched("lab", LaunchRow(0, "m", "server", "here", None, "exit 0"))
    store.record("lab", "failed", "x")
    second = store.put(plan())
    assert second.token != first.token
    assert store.launches("lab") == [] and store.events("lab") == []


def test_events_are_bounded(store, monkeypatch):
    monkeypatch.setattr(state, "MAX_EVENTS", 5)
    store.put(plan())
    for number in range(12):
        store.record("lab", "starting", str(number))
    assert [event.text for event in store.events("lab")] == ["7", "8", "9", "10", "11"]
    assert len(store.events("lab", store.events("lab")[2].id)) == 2


def test_unknown_names(store):
    with pytest.raises(UserError, match="nothing was started yet"):
        store.get("lab")
    store.put(plan())
    with pytest.raises(UserError, match=r"did you mean 'lab'\?"):
        store.get("lap")
    with pytest.raises(UserError, match="there are: lab"):
        store.get("zzzzzz")


def test_other_schemas_and_no_database(tmp_path):
    with sqlite3.connect(tmp_path / "fleet.db") as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(UserError, match=r"another version of eyas; .* move the file away"):
        Store(tmp_path)
    (tmp_path / "fleet.db").write_bytes(b"not a database" * 100)
    with pytest.raises(UserError, match="EYAS_HOME"):
        Store(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make"):
        home({"EYAS_HOME": str(tmp_path / "file" / "x")})


def spoil(folder, name):
    """As another version would have written it."""
    with sqlite3.connect(folder / "fleet.db") as db:
        db.execute("UPDATE deployments SET plan = json_set(plan, '$.choice.new_field', 1) WHERE name = ?", (name,))
    db.close()


def test_a_plan_of_another_version_spoils_nothing_else(store, tmp_path):
    for name in ("lab", "other"):
        store.put(plan(name))
    store.launched("other", LaunchRow(0, "m", "server", "here", None, "exit 0"))
    spoil(tmp_path, "other")
    assert [row.name for row in store.rows()] == ["lab"] and store.names() == ["lab", "other"]
    assert store.standing("other").status == "starting"
    with pytest.raises(UserError, match="another version of eyas; stop it first: eyas down other"):
        store.get("other")
    store.record("other", "stopped", "")
    store.stopped("other", 0)
    assert store.find("other") is None, "a name that can be used anew"


def test_a_database_that_cannot_be_written(store, tmp_path, monkeypatch):
    monkeypatch.setattr(state, "BUSY_S", 0.0)
    store.put(plan())
    late = Store(tmp_path)
    with sqlite3.connect(tmp_path / "fleet.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match="database is locked"):
            late.record("lab", "ready", "")
        assert late.standing("lab").status == "starting"
    other.close()
    late.record("lab", "ready", "")
    late.close()


def test_many_writers(tmp_path, store):
    store.put(plan())

    def write():
        own = Store(tmp_path)
        for _ in range(20):
            own.record("lab", "starting", "x")
        own.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.events("lab")) == 80


def test_the_lock(tmp_path):
    assert not is_supervised(tmp_path, "lab")
    held = lock(tmp_path, "lab")
    assert held is not None and is_supervised(tmp_path, "lab")
    assert lock(tmp_path, "lab") is None
    assert holder(tmp_path, "lab") is None
    sign(held, os.getpid())
    assert holder(tmp_path, "lab") == os.getpid()
    other = lock(tmp_path, "other")
    assert other is not None
    os.close(other)
    copy = os.dup(held)  # as a supervisor inherits it
    os.close(held)
    assert is_supervised(tmp_path, "lab")
    sign(copy, 1)
    assert holder(tmp_path, "lab") == 1
    path = tmp_path / "supervisors" / "lab.lock"
    for text in ("1 77 ", f"{2**22 + 1} 5", "", "x"):  # another process has the number, or none has it
        path.write_text(text)
        assert holder(tmp_path, "lab") is None
    os.close(copy)
    assert not is_supervised(tmp_path, "lab")
