"""Takes away what a program must not have, then becomes it: `python -I -S -c SOURCE JSON`, inside the namespaces.

The standard library is all that is there. The program comes on standard input. A byte on the socket `ready` says
that everything was set, so that what follows is the program's own doing, and one that comes back lets it begin.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import sys
from typing import Any

GUEST = 65534  # by custom a user without files and rights
NEW_USER = 0x10000000  # CLONE_NEWUSER
NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER
PROGRAM = "main.py"

libc = ctypes.CDLL(None, use_errno=True)


class FilterProgram(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def leave_root() -> None:
    """Become the guest, in a user namespace of its own: its processes are counted there alone, and root's nowhere."""
    os.setgroups([])
    os.setresgid(GUEST, GUEST, GUEST)
    os.setresuid(GUEST, GUEST, GUEST)
    check(libc.unshare(NEW_USER), "unshare")


def set_limits(limits: dict[str, Any]) -> None:
    """Set both limits of each kind, so that none can be raised again; one that is lower already stays."""
    for name, most in (
        (resource.RLIMIT_CPU, limits["cpu_s"] + 1),  # what watches from outside comes first, and says why
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        now = resource.getrlimit(name)[1]
        least = most if now == resource.RLIM_INFINITY else min(most, now)
        resource.setrlimit(name, (least, least))


def filter_calls(instructions: bytes) -> None:
    """Give up all new privileges, and filter system calls from here on."""
    check(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    program = FilterProgram(len(instructions) // 8, instructions)
    check(libc.prctl(SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0), "seccomp")


def main(plan: dict[str, Any]) -> None:
    if os.getuid() == 0:
        leave_root()
    os.chdir(plan["scratch"])
    with open(PROGRAM, "wb") as file:  # noqa: PTH123  # pathlib takes 10 ms to import
        file.write(sys.stdin.buffer.read())
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    set_limits(plan["limits"])
    filter_calls(base64.b64decode(plan["filter"]))
    os.write(plan["ready"], b"1")
    os.read(plan["ready"], 1)
    os.close(plan["ready"])
    os.execv(plan["python"], ["python", "-I", "-B", "-u", "-X", "utf8", PROGRAM])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
