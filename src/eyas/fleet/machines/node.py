"""Runs scripts on a machine: this one, or another over OpenSSH. Knows nothing about engines.

A script goes to `sh -s` through its standard input, wrapped in braces: its text, which may hold secrets, is in no list
of processes and on no disk, and half of it (a lost connection) is a syntax error that does nothing. `timeout` ends
what hangs on the machine itself, too. Needs sh, coreutils and, for other machines, OpenSSH 8 or later.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import signal
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import httpx

from eyas.base.errors import UserError
from eyas.recipes.plan import Node

__all__ = ["LocalNode", "NodeError", "NodeRunner", "Result", "SshNode", "runner"]

CONNECT_S = 5
SLACK_S = 1.0  # for the way there and back
KILL_S = 2.0  # between TERM and KILL for a script that is late
TIMED_OUT = (124, 137)  # how `timeout` exits after TERM and after KILL
OPTIONS = "EYAS_SSH_OPTIONS"
SSH_FAILED = 255
OWN_VARIABLES = "EYAS_"  # settings of this process, none of the engine's
NAME_CHARS = 16
MAX_FOLDER = 107 - len("/") - NAME_CHARS - 17  # of a socket's path, with what ssh adds while it makes one
KEEP_S = 60  # an idle connection
# Servers are asked over HTTP. Without this each look at one reads the certificates of all authorities: 25 ms of CPU.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Result(NamedTuple):
    """Exit code and output of a script."""

    code: int
    out: str
    err: str


class NodeError(UserError):
    """A machine could not be asked: unreachable, not let in, or no answer in time. What runs there may go on."""


class NodeRunner(Protocol):
    """Runs scripts on one machine. Every method may be called from any thread."""

    @property
    def name(self) -> str:
        """Name of the machine in the plan."""

    @property
    def is_local(self) -> bool: ...

    def run(self, script: str, *, timeout_s: float = 30) -> Result:
        """Run an sh script to its end. Raises NodeError if the machine cannot be reached or takes too long."""

    def transport(self, host: str, port: int) -> httpx.BaseTransport:
        """Return an httpx transport whose requests reach `host:port` as that machine sees it. Raises NodeError."""


def runner(node: Node, environ: Mapping[str, str] | None = None) -> NodeRunner:
    """Return the runner of scripts for `node`. Raises UserError for a destination that ssh would take for an option."""
    return LocalNode(node.name) if node.ssh is None else SshNode(node.name, node.ssh, environ)


class LocalNode:
    """Runs scripts on this machine. They see this process's environment without the `EYAS_*` settings.

    Programs of this very installation, `eyas` among them, are found even where it is not on the path.
    """

    is_local = True

    def __init__(self, name: str = "here") -> None:
        self.name = name

    def run(self, script: str, *, timeout_s: float = 30) -> Result:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
        environment["PATH"] = f"{environment.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
        result = _piped(_shell(timeout_s), script, timeout_s + KILL_S + SLACK_S, environment)
        return _in_time(self.name, result, timeout_s)

    def transport(self, host: str, port: int) -> httpx.BaseTransport:
        return httpx.HTTPTransport(verify=_NO_TLS)


class SshNode:
    """Runs scripts on another machine with OpenSSH: the user's own keys, agent and configuration, never a password.

    One connection is kept and shared, its sockets in a folder that only this person can enter. `EYAS_SSH_OPTIONS`
    holds further options of ssh, e.g. `-i ~/.ssh/spark -p 2222`.
    """

    is_local = False

    def __init__(self, name: str, destination: str, environ: Mapping[str, str] | None = None) -> None:
        if destination.startswith("-") or not destination.isprintable() or not destination or " " in destination:
            raise UserError(f"'{destination}' is no ssh destination; it looks like user@host")
        self.name = name
        self.destination = destination
        self._environ = os.environ if environ is None else environ
        _private_folder(self._environ)

    def run(self, script: str, *, timeout_s: float = 30) -> Result:
        begin = f"eyas {secrets.token_hex(8)}\n"  # what its shell's startup files print comes before
        command = ["ssh", "-T", *self._options(), "--", self.destination, shlex.join(_shell(timeout_s))]
        result = _piped(command, f"echo {begin}{script}", timeout_s + SLACK_S)
        if result.code == SSH_FAILED:
            raise NodeError(self._why(result.err))
        return _in_time(self.name, result._replace(out=result.out.partition(begin)[2]), timeout_s)

    def transport(self, host: str, port: int) -> httpx.BaseTransport:
        """Return a transport through a socket in the private folder, so that no other user here reaches the server."""
        path = _private_folder(self._environ) / f"{_short(self.destination, host, str(port))}.http"
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        forward = ["ssh", *self._options(), "-O", "forward", "-L", f"{path}:{target}", "--", self.destination]
        if _piped(forward, "", CONNECT_S).code != 0:
            self.run(":")  # makes the connection
            result = _piped(forward, "", CONNECT_S)
            if result.code != 0:
                raise NodeError(f"ssh cannot forward port {port} of {self.name}: {_last_line(result.err)}")
        return httpx.HTTPTransport(uds=str(path), verify=_NO_TLS)

    def _options(self) -> list[str]:
        """Return the options of one ssh. Each makes the sockets' folder: logind deletes it with the last login."""
        given = self._environ.get(OPTIONS, "")
        options = shlex.split(given)  # ssh takes the first value of an option
        for option in (
            "BatchMode=yes",
            f"ConnectTimeout={CONNECT_S}",
            "ControlMaster=auto",
            f"ControlPath={_private_folder(self._environ)}/{_short(self.destination, given)}",
            f"ControlPersist={KEEP_S}",
            "ServerAliveInterval=2",
            "ServerAliveCountMax=3",
            "StreamLocalBindUnlink=yes",
            "LogLevel=ERROR",
        ):
            options += ["-o", option]
        return options

    def _why(self, err: str) -> str:
        who = self.destination if self.name in self.destination else f"{self.name} ({self.destination})"
        for mark, text in (
            ("Connection refused", "connection refused; start its ssh server there: sudo systemctl start ssh"),
            ("Permission denied", f"it does not accept your key; run: ssh-copy-id {self.destination}"),
            ("Host key verification", f"its host key is not known here; compare it once with: ssh {self.destination}"),
            ("REMOTE HOST IDENTIFICATION", f"its host key has changed; compare it with: ssh {self.destination}"),
            ("Could not resolve", "no machine has that name; check the spelling and ~/.ssh/config"),
            ("timed out", "no answer; check that it is on and the cable's port is up: ip -br link"),
            ("No route to host", "no route to it; check that it is on and the cable's port is up: ip -br link"),
            ("Network is unreachable", "no route to it; check this machine's network: ip -br address"),
        ):
            if mark in err:
                return f"cannot reach {who}: {text}"
        return f"cannot reach {who}: {_last_line(err) or 'ssh lost the connection'}; try: ssh {self.destination}"


def _shell(timeout_s: float) -> list[str]:
    return ["timeout", "-k", f"{KILL_S:g}", f"{timeout_s:.3f}", "sh", "-s"]


def _piped(
    command: Sequence[str], script: str, patience_s: float, environment: Mapping[str, str] | None = None
) -> Result:
    """Run `command` with the wrapped script as its input; what outlives all patience is killed here."""
    if "\0" in script:
        raise ValueError("a script holds no NUL")
    text = f"{{\n{script}\n}} </dev/null\n" if script else ""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us to handle
        )
    except FileNotFoundError:
        raise UserError(f"this needs {command[0]}; install {_package(command[0])}") from None
    try:
        out, err = process.communicate(text.encode("utf-8", "surrogateescape"), patience_s)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        return Result(TIMED_OUT[0], "", "")
    except BaseException:
        _signal(process, signal.SIGTERM)
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
    return Result(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.killpg(process.pid, number)


def _package(program: str) -> str:
    return {"ssh": "openssh-client", "timeout": "coreutils"}.get(program, program)


def _in_time(name: str, result: Result, timeout_s: float) -> Result:
    if result.code in TIMED_OUT:
        raise NodeError(f"{name} did not answer within {timeout_s:g} s; look at its load and disks")
    return result


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def _short(*words: str) -> str:
    """Return a short name for a socket, derived from these words."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:NAME_CHARS]


def _private_folder(environ: Mapping[str, str]) -> Path:
    """Return a folder of this user alone with a short path (sockets have room for 108 characters)."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    own = f"eyas-{os.getuid()}"
    folders = [Path(runtime) / "eyas"] if runtime and Path(runtime).is_dir() else []
    folders += [Path(tempfile.gettempdir()) / own, Path("/tmp") / own]
    folder = next((one for one in folders if len(os.fsencode(one)) <= MAX_FOLDER), folders[-1])
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserError(f"{folder} is not yours alone; remove it or set XDG_RUNTIME_DIR to a folder of yours")
    return folder
