"""A backend that is started here: its plan, brought up and taken down by fleet. Every method may block for long.

The engine and its supervisor are processes of their own, which outlive the router; a new router takes them over.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from eyas.base.errors import UserError
from eyas.fleet.running.control import take_down
from eyas.fleet.running.state import Event, Standing, Store, is_supervised
from eyas.recipes.plan import Plan
from eyas.recipes.planning.plain import without_speculation
from eyas.router.backends.starting import News

__all__ = ["Planned", "Starters", "State", "claim"]

LOCKS = "routers"
PID = 20  # characters


class State(Struct, frozen=True, kw_only=True):
    """State of a deployment. `is_plain`: it runs without the speculation of its file."""

    standing: Standing | None
    is_supervised: bool
    is_plain: bool = False


class Starters:
    """Processes that bring plans up. One may be ready before it is wanted: Python takes half a second to start."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._spare: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Have one ready."""
        with self._lock:
            if self._spare is None or self._spare.poll() is not None:
                self._spare = self._start()

    def take(self) -> subprocess.Popen[bytes]:
        """Return one that waits for a plan."""
        with self._lock:
            spare, self._spare = self._spare, None
        return spare if spare is not None and spare.poll() is None else self._start()

    def close(self) -> None:
        """End the one that is ready."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.kill()
            with spare:  # closes its pipes, and waits for it
                pass

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "eyas.router.backends.starting"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(self._environ),
            start_new_session=True,
        )


class Planned:
    """The plan of one backend. `note` is what is being done before a start, for people."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        environ: Mapping[str, str],
        *,
        replan: Callable[[Plan], Plan] = without_speculation,
    ) -> None:
        self.plan = plan
        self.name = plan.choice.name
        self.note = ""
        self._folder = folder
        self._environ = environ
        self._replan = replan
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.starters = Starters(environ)  # may be shared

    @property
    def limit_s(self) -> float:
        """The longest time that its plan gives it to be ready, once what it needs is on the machines."""
        emission = self.plan.emission
        return sum(launch.wait.timeout_s for launch in emission.launches) + emission.readiness.timeout_s

    def marks(self) -> tuple[str, ...]:
        """Return by what each of its launches is known on this machine (`LaunchRow.mark`). Raises UserError."""
        with self._store() as store:
            return tuple(row.mark for row in store.launches(self.name) if row.ssh is None)

    def check(self) -> None:
        """Check that no other plan of its name is up. Raises UserError."""
        with self._store() as store:
            self._wanted(store)

    def state(self) -> State:
        """Return how it stands. Raises UserError if that cannot be read."""
        with self._store() as store:
            standing = store.standing(self.name)
            row = store.find(self.name) if standing is not None and standing.is_active else None
        is_plain = row is not None and not _starts_the_same(row.plan, self.plan)
        return State(standing=standing, is_supervised=is_supervised(self._folder, self.name), is_plain=is_plain)

    def start(self) -> None:
        """Bring it up, over what already runs of it. Raises UserError."""
        with self._store() as store:
            wanted = self._wanted(store)
        self._up(wanted)

    def stop(self) -> None:
        """Take it down on all machines. Raises UserError for what could not be stopped."""
        with self._store() as store:
            take_down(self._folder, store, self.name, self._environ, _unheard)

    def restart_plainly(self) -> None:
        """Stop it and start it without speculation. Raises UserError, before it is stopped if there is no such plan."""
        plain = self._replan(self.plan)
        with self._store() as store:
            take_down(self._folder, store, self.name, self._environ, _unheard)
        self._up(plain)

    def cancel(self) -> None:
        """End a start that is under way. Does not block."""
        with self._lock:
            if self._process is not None:
                self._process.terminate()

    def _up(self, plan: Plan) -> None:
        """Start a process that brings `plan` up, and wait for it. Raises UserError."""
        with self._lock:
            process = self._process = self.starters.take()
        assert process.stdin is not None and process.stdout is not None
        error = ""
        with process:
            with suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(plan) + b"\n")
                process.stdin.flush()
            for line in process.stdout:
                news = msgspec.json.decode(line, type=News)
                self.note, error = news.note or self.note, news.error
        with self._lock:
            self._process, self.note = None, ""
        if process.returncode != 0:
            raise UserError(error or f"the start of {self.name} was interrupted")

    def _wanted(self, store: Store) -> Plan:
        """Return the plan to bring up: the file's, or, where that one runs, the same without speculation.

        Raises UserError where another plan of the name is up.
        """
        row = store.find(self.name)
        if row is None or not (row.is_active or store.launches(self.name)) or _starts_the_same(row.plan, self.plan):
            return self.plan
        with suppress(UserError):
            plain = self._replan(self.plan)
            if _starts_the_same(row.plan, plain):
                return plain
        raise UserError(f"{self.name} is up with another plan; stop it first: eyas down {self.name}")

    @contextmanager
    def _store(self) -> Iterator[Store]:
        """Open the fleet's database: each thread has its own."""
        store = Store(self._folder)
        try:
            yield store
        finally:
            store.close()


def claim(folder: Path, deployments: Mapping[str, str]) -> list[int]:
    """Take the plans of a router for this process: deployments by backend. They are its own until it ends.

    Returns descriptors that hold them. Raises UserError, with nothing taken, if another router has one.
    """
    held: list[int] = []
    (folder / LOCKS).mkdir(mode=0o700, exist_ok=True)
    for backend, name in deployments.items():
        descriptor = os.open(folder / LOCKS / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, PID, 0).decode("ascii", "replace").strip()
            for one in held:
                os.close(one)
            raise UserError(
                f"the plan of backend {backend} ({name}) is run by another router"
                + (f", process {pid}" if pid else "")
                + "; stop that one, or give this one a plan of another name"
            ) from None
        with suppress(OSError):  # a full disk; the lock counts all the same
            os.pwrite(descriptor, str(os.getpid()).ljust(PID).encode(), 0)
    return held


def _starts_the_same(one: Plan, other: Plan) -> bool:
    return (one.choice, one.emission) == (other.choice, other.emission)


def _unheard(event: Event) -> None:
    """Take an event of a deployment; the watcher reads its state."""
