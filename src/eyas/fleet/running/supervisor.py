"""Process that keeps one deployment up: `python -m eyas.fleet.running.supervisor NAME`, without a terminal.

It asks the policy what to do, does it, and records the outcome. SIGTERM stops the whole group. If the process
is killed the engines go on, and the next one takes them over. Secrets come with its environment and stay there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import syslog
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

import msgspec

from eyas.base.errors import EyasError, UserError
from eyas.base.settings.home import home
from eyas.fleet.machines.node import runner
from eyas.fleet.running.deployment import Deployment, secrets_of
from eyas.fleet.running.policy import (
    Act,
    Event,
    Failed,
    Limits,
    Look,
    Observe,
    Prepare,
    Rest,
    Shape,
    StartLaunch,
    State,
    Status,
    StopAll,
    Stopped,
    Succeeded,
    act,
    advance,
    asked_down,
)
from eyas.fleet.running.state import Row, StateError, Store, sign

__all__ = ["fork", "limits_of", "log_path", "main", "spawn", "stop_on_signals", "supervise"]

LIMITS = "EYAS_FLEET_LIMITS"
SIGNALS = (signal.SIGTERM, signal.SIGINT)
GONE_LOOKS = 2  # without a database, one after another, before the deployment is stopped


def limits_of(environ: Mapping[str, str]) -> Limits:
    """Read `EYAS_FLEET_LIMITS`, a JSON object of fields of `Limits`. Raises UserError."""
    try:
        return msgspec.json.decode(environ.get(LIMITS, "{}"), type=Limits)
    except msgspec.MsgspecError as error:
        raise UserError(f"{LIMITS}: {error}") from None


def log_path(folder: Path, name: str) -> Path:
    return folder / "supervisors" / f"{name}.log"


def spawn(folder: Path, name: str, lock: int) -> None:
    """Start the supervisor of a recorded deployment; it holds `lock` from now on."""
    descriptor = os.open(log_path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # it inherits that, until it can handle them
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "eyas.fleet.running.supervisor", name],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=folder,
            env={**os.environ, "EYAS_HOME": str(folder)},
            pass_fds=(lock,),
            start_new_session=True,
        )
        sign(lock, process.pid)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(descriptor)
    threading.Thread(target=process.wait, name="eyas-reaper", daemon=True).start()  # it may end before we do


def fork(folder: Path, name: str, lock: int) -> None:
    """Do as `spawn` does, half a second faster: for a process that ends soon, and has imported everything by then.

    The child has only the thread that called, and runs `main` at once.
    """
    descriptor = os.open(log_path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    pid = os.fork()
    if pid:
        sign(lock, pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(descriptor)
        return
    code = 1
    try:
        sign(lock, os.getpid())  # the parent may be ended before it does
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.closerange(3, lock)
        os.closerange(lock + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir(folder)
        os.environ["EYAS_HOME"] = str(folder)
        code = main(name)
    finally:
        os._exit(code)


def supervise(row: Row, deployment: Deployment, store: Store, limits: Limits, stop: threading.Event) -> State:
    """Supervise a deployment until it has ended; `stop` asks for that. What cannot be recorded is recorded later.

    Where its database is deleted (EYAS_HOME), no command finds the deployment any more, and it is stopped.
    """
    shape = Shape.of(row.plan)
    state = State(since=time.monotonic(), was_ready=row.was_ready)
    doer = _Doer(deployment, stop)
    recorded: tuple[Status, str] = (row.status, row.note)
    restarts = gone = 0
    while (what := act(state, limits)) is not None:
        event = doer.do(what)
        now = time.monotonic()
        new = advance(state, event, now, shape, limits)
        gone = gone + 1 if store.is_gone() else 0
        if gone == GONE_LOOKS and not stop.is_set():
            _say(f"{row.name} is stopped: the folder that it is recorded in was deleted (EYAS_HOME)")
            stop.set()
        if stop.is_set():
            new = asked_down(new, now)
        restarts += state.phase == "waiting" and new.phase == "preparing"
        if (new.status, new.note) != recorded:
            with suppress(StateError):
                store.record(row.name, new.status, new.note, restarts=restarts)
                recorded, restarts = (new.status, new.note), 0
        state = new
    return state


def _say(text: str) -> None:
    """Write a line to the system's log, and to the supervisor's own, which may be gone."""
    syslog.syslog(syslog.LOG_WARNING, f"eyas: {text}")
    print(text, file=sys.stderr, flush=True)


class _Doer:
    """Carries out actions and returns the events that follow."""

    def __init__(self, deployment: Deployment, stop: threading.Event) -> None:
        self._deployment = deployment
        self._stop = stop
        self._last_look = 0.0

    def do(self, what: Act) -> Event:
        try:
            match what:
                case Look():
                    return self._deployment.look()
                case Prepare():
                    self._deployment.prepare()
                case StartLaunch(index):
                    self._deployment.launch(index)
                case Observe():
                    self._pause(what)
                    self._last_look = time.monotonic()
                    return self._deployment.observe(what)
                case StopAll():
                    return Stopped(self._deployment.stop())
                case Rest(until):
                    self._stop.wait(max(0.0, until - time.monotonic()))
        except EyasError as error:
            return Failed(str(error))
        return Succeeded()

    def _pause(self, what: Observe) -> None:
        """Wait until it is time to look; while it starts, others wait for it, and a good answer ends the pause."""
        awaited = self._deployment.news if what.is_loading else self._stop
        if awaited.wait(max(0.0, self._last_look + what.pause_s - time.monotonic())):
            self._deployment.news.clear()


def stop_on_signals(*events: threading.Event) -> None:
    """Have SIGTERM and SIGINT set `events`, in order, in a thread: `set` would hang in a handler that interrupts an
    event's `wait`, if that has the event's lock just then."""

    def set_all() -> None:
        for event in events:
            event.set()

    def on_signal(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=set_all, name="eyas-stop", daemon=True).start()

    for number in SIGNALS:
        signal.signal(number, on_signal)


def main(name: str) -> int:
    """Run the supervisor. Returns 0 when the deployment was stopped as asked, 1 when it has failed."""
    stop, news = threading.Event(), threading.Event()
    stop_on_signals(stop, news)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    folder = home(os.environ)
    store = Store(folder)
    row = store.get(name)
    try:
        limits = limits_of(os.environ)
        nodes = [runner(node, os.environ) for node in row.plan.choice.nodes]
        deployment = Deployment(row, nodes, store, limits, secrets_of(row.plan, os.environ), news=news)
        state = supervise(row, deployment, store, limits, stop)
        deployment.close()
    except Exception as error:
        store.record(
            name, "failed", f"the supervisor failed: {error or type(error).__name__}; {log_path(folder, name)}"
        )
        traceback.print_exc()
        return 1
    return 0 if state.status == "stopped" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
