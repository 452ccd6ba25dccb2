"""Starts Claude Code in place of this process, with settings in a file that is gone when it ends.

The client takes over the process: terminal, signals, stopping and its exit code need no forwarding. A watcher, which no
signal of the terminal reaches, removes the file as soon as the process has ended, however it ended.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from eyas.base.errors import UserError
from eyas.claude.merge import Settings

__all__ = ["find_client", "start"]

NAME = "claude"
OTHER_PLACES = (".local/bin/claude", ".claude/local/claude")  # of its installers, which may not be on the path
INSTALL = "npm install -g @anthropic-ai/claude-code"
FLAG = "--settings"
MAX_DESCRIPTORS = 1 << 20
BACKGROUND = ("--bg", "--background")


def find_client(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the client's program: `given`, or the one that is installed. Raises UserError if there is none."""
    search = environ.get("PATH", os.defpath)
    if given is not None:
        found = shutil.which(given, path=search)
        if found is None:
            raise UserError(f"--binary {given} is no program")
        return found
    places = [NAME, *(str(Path.home() / place) for place in OTHER_PLACES)]
    found = next(filter(None, (shutil.which(place, path=search) for place in places)), None)
    if found is None:
        raise UserError(f"Claude Code is not installed; get it with: {INSTALL}, or name its program: --binary PATH")
    return found


def start(program: str, args: Sequence[str], settings: Settings, environ: Mapping[str, str]) -> NoReturn:
    """Become the client with `args`. Raises UserError if it cannot be started; then, too, the file is gone."""
    for arg in args:
        if arg.split("=")[0] == FLAG:
            raise UserError(f"{FLAG} is what eyas passes; put settings of yours into a settings.json")
        if arg in BACKGROUND:
            raise UserError(f"a session in the background outlives its settings; for {arg} use: eyas claude write")
    path = Path(_folder(environ)) / f"eyas-claude-{secrets.token_hex(8)}.json"
    try:
        _watch(path)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(settings, file, indent=2)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and so would the client
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, [program, FLAG, str(path), *args], dict(environ))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UserError(f"cannot start {program}: {error.strerror}") from None


def _folder(environ: Mapping[str, str]) -> str:
    """Return the person's own folder in memory, where there is one that can be written."""
    folder = environ.get("XDG_RUNTIME_DIR")
    return folder if folder and os.access(folder, os.W_OK | os.X_OK) else tempfile.gettempdir()


def _watch(path: Path) -> None:
    """Start a process of its own session, and no child of the client, that removes `path` once this one has ended."""
    ours = os.pidfd_open(os.getpid())  # stays the same process when the client takes over
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(ours)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        os.dup2(ours, 0)  # nothing else stays open: a reader of the client's output waits for its end
        os.closerange(1, MAX_DESCRIPTORS)
        select.select([0], [], [])
        path.unlink(missing_ok=True)
    finally:
        os._exit(0)
