"""A program in the place of Claude Code: it records how it was started, and ends or waits as a test wants."""

import json
import shlex
import sys
import time

# The shell looks before Python ignores signals of its own.
SHELL = """#!/bin/sh
export IGNORED="$(sed -n 's/^SigIgn:[[:space:]]*//p' /proc/$$/status)"
exec {python} -IS {body} "$@"
"""
BODY = """import json, os, signal, sys, time
if "polite" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
path = sys.argv[sys.argv.index("--settings") + 1]
with open(path) as file:
    settings = json.load(file)
report = {
    "pid": os.getpid(),
    "argv": sys.argv[1:],
    "path": path,
    "mode": os.stat(path).st_mode & 0o777,
    "settings": settings,
    "environ": dict(os.environ),
    "command_line": open("/proc/self/cmdline").read(),
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    "descriptors": os.listdir("/proc/self/fd"),
    "input": "" if "wait" in sys.argv else sys.stdin.read(),
}
print("the client's output", flush=True)
place = os.path.join(os.path.dirname(sys.argv[0]), "report.json")
with open(place + ".new", "w") as file:
    json.dump(report, file)
os.rename(place + ".new", place)
while "wait" in sys.argv:
    time.sleep(0.01)
sys.exit(7 if "fail" in sys.argv else 0)
"""


class Client:
    """`program` is to be started; it reports once."""

    def __init__(self, folder):
        self.program, body, self._place = folder / "claude", folder / "client.py", folder / "report.json"
        body.write_text(BODY)
        self.program.write_text(SHELL.format(python=shlex.quote(sys.executable), body=shlex.quote(str(body))))
        self.program.chmod(0o755)

    def report(self, limit_s=20):
        """What it recorded, once it has."""
        end = time.monotonic() + limit_s
        while not self._place.exists():
            assert time.monotonic() < end, "the client was not started"
            time.sleep(0.01)
        return json.loads(self._place.read_text())


def is_gone(path, limit_s=10):
    """Whether the file goes away by itself."""
    end = time.monotonic() + limit_s
    while path.exists() and time.monotonic() < end:
        time.sleep(0.005)
    return not path.exists()
