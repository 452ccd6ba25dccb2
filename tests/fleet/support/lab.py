"""A fleet of one's own: a state folder, small patience, plans of the fake engine, and a look at what is left."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import yaml
from tests.recipes.support.estimate import SPEED

from eyas import cli
from eyas.fleet.running.state import Store, is_supervised
from eyas.recipes.plan import Box, Choice, Emission, Launch, MemoryMap, Node, Plan, Readiness
from eyas.recipes.records import Hardware

ENGINE = Path(__file__).with_name("fake_engine.py")
PATIENCE_S = 120
LIMITS = {
    "poll_s": 0.05,
    "start_poll_s": 0.05,
    "answer_s": 30.0,
    "lost_s": 0.5,
    "health_s": 0.05,
    "probe_s": 30.0,
    "hung_s": 0.5,
    "canary_s": 60.0,
    "grace_s": 5.0,
    "backoff_s": 0.05,
    "max_backoff_s": 0.2,
    "max_restarts": 3,
}
HARDWARE = Hardware(
    name="cpu",
    sources=("a test",),
    date="2026-11",
    title="none",
    compute_capability="0.0",
    architectures=("x86_64",),
    memory_bytes=1 << 30,
    usable_bytes=1 << 30,
    bandwidth=1e9,
)
HERE = (Node(name="here"),)
BOX = Box(name="here", hardware=HARDWARE, architecture="x86_64", is_probed=True)


def engine(*args, name="server"):
    """The command line of a fake engine."""
    return (sys.executable, "-SE", str(ENGINE), "--name", name, *map(str, args))


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def make_plan(directory, port, launches, *, files=(), nodes=HERE, name="lab", **choice):
    chosen = Choice(
        model="demo",
        engine="llama.cpp",
        version="b1",
        image=None,
        method="none",
        context=4096,
        concurrency=1,
        nodes=tuple(nodes),
        port=port,
        cache=str(directory),
        directory=str(directory),
        name=name,
        **choice,
    )
    readiness = Readiness(path="/health", timeout_s=PATIENCE_S, model="demo")
    return Plan(
        box=BOX,
        choice=chosen,
        emission=Emission(launches=tuple(launches), files=tuple(files), readiness=readiness),
        memory=MemoryMap(rows=(), capacity=1, reserved=0, kv_bytes_per_token=0.0, max_tokens=0),
        speed=SPEED,
    )


def write_plan(path, plan):
    path.write_text(yaml.safe_dump(json.loads(msgspec.json.encode(plan)), sort_keys=False), encoding="utf-8")
    return path


class Lab:
    """One person's fleet below `tmp`. Commands run in this process or, where a signal is to be sent, in another."""

    def __init__(self, tmp, runtime, limits=()):
        self.tmp = tmp
        self.home = tmp / "home"
        self.environ = {
            "EYAS_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(runtime),
            "EYAS_FLEET_LIMITS": json.dumps({**LIMITS, **dict(limits)}),
        }
        self.journal = tmp / "journal"

    def limit(self, **limits):
        self.environ["EYAS_FLEET_LIMITS"] = json.dumps({**LIMITS, **limits})
        os.environ.update(self.environ)

    def plan(self, *args, launches=None, port=None, **options):
        """A plan of one engine with `args`, written to a file."""
        port = port or free_port()
        if launches is None:
            launches = (Launch(name="server", argv=engine("--port", port, "--journal", self.journal, *args)),)
        plan = make_plan(options.pop("directory", self.tmp / "node"), port, launches, **options)
        return write_plan(self.tmp / f"{plan.choice.name}.yaml", plan)

    def run(self, *argv):
        """(exit code, standard output, standard error) of `eyas ARGV`."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main([str(word) for word in argv])
        return code, out.getvalue(), err.getvalue()

    def up(self, plan, *flags):
        code, out, err = self.run("up", plan, *flags)
        assert code == 0, out + err + self.logs()
        return out

    def down(self, name="lab"):
        code, out, err = self.run("down", name)
        assert code == 0, out + err + self.logs()
        return out

    def start(self, *argv, sigint=signal.SIG_DFL, **more):
        """`eyas ARGV` as a process of its own. `sigint=SIG_IGN`: as in the background of a script."""
        return subprocess.Popen(
            [sys.executable, "-m", "eyas", *map(str, argv)],
            env={**os.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, sigint),
        )

    def store(self):
        self.home.mkdir(exist_ok=True)
        return Store(self.home)

    def row(self, name="lab"):
        store = self.store()
        try:
            return store.find(name)
        finally:
            store.close()

    def events(self, name="lab"):
        store = self.store()
        try:
            return [(event.status, event.text) for event in store.events(name)]
        finally:
            store.close()

    def journal_lines(self):
        return [json.loads(line) for line in self.journal.read_text().splitlines()] if self.journal.exists() else []

    def wait_for_events(self, *texts, name="lab"):
        """Until each of `texts` stands in the events, in this order."""

        def all_there():
            events = iter(text for _, text in self.events(name))
            return all(any(wanted in text for text in events) for wanted in texts)

        wait_until(all_there, lambda: f"{texts} not in {self.events(name)}\n{self.logs()}")

    def wait_for_starts(self, count):
        wait_until(lambda: len(self.journal_lines()) >= count, lambda: f"{self.events()} {self.logs()}")

    def marks(self, name="lab"):
        """By what the launches are known; one whose start is still under way has an empty one."""
        store = self.store()
        try:
            return [row.mark for row in store.launches(name)]
        finally:
            store.close()

    def is_supervised(self, name="lab"):
        return is_supervised(self.home, name)

    def logs(self):
        return "\n".join(f"== {path}\n{path.read_text()}" for path in self.tmp.rglob("*.log"))

    def clean_up(self):
        """Stop everything; what then is still there is killed and named."""
        with contextlib.suppress(Exception):
            self.run("down", "--all")
        left = members(self.tmp)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def members(tmp):
    """Living processes that know of the folder `tmp`: by their arguments, environment or working directory."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes() + b"\0" + (folder / "environ").read_bytes()
            words += os.fsencode((folder / "cwd").readlink())
            if os.fsencode(str(tmp)) in words and (folder / "stat").read_text().rsplit(") ", 1)[1][0] not in "ZX":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def wait_until(condition, complaint=lambda: ""):
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.02)
    return value


def is_alive(pid, began=None):
    """Whether a process lives; with `began` of its line in a journal, also where its number was given to another."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and began in (None, fields[19])


def everything_written(*folders):
    """The text of every file in `folders`, and the arguments of every process."""
    files = [Path(root, name) for folder in folders for root, _, names in os.walk(folder) for name in names]
    processes = [folder / "cmdline" for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    text = b""
    for path in (*files, *processes):
        with contextlib.suppress(OSError):  # files and processes come and go
            text += path.read_bytes() if path.is_file() else b""
    return text.decode(errors="replace")
