"""Enters namespaces of its own and starts a command there, for machines without bubblewrap: `enter.py JSON`.

Needs the standard library alone. An ordinary user becomes the guest of a user namespace; root needs none.
Sources: user_namespaces(7), pid_namespaces(7), pivot_root(2), mount_setattr(2).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

GUEST = 65534  # by custom a user without files and rights
NEW_USER = 0x10000000  # CLONE_NEWUSER
NEW_OTHERS = (
    0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000
)  # NS, PID, NET, IPC, UTS, CGROUP
BIND, RECURSIVE, PRIVATE, NOSUID, NODEV, DETACH = 4096, 16384, 1 << 18, 2, 4, 2  # MS_*, MNT_DETACH
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
ATTRIBUTES = {"read-only": 1, "no setuid": 2, "no devices": 4}  # MOUNT_ATTR_*
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
NEW_ROOT, OLD_ROOT = "/tmp", "/old"

libc = ctypes.CDLL(None, use_errno=True)


class Attributes(ctypes.Structure):
    """struct mount_attr of linux/mount.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd"))


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = [text.encode() for text in (source, target, kind, options)]
    check(libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]), f"mount {source} on {target}")


def restrict(path: str, *names: str, is_recursive: bool = True) -> None:
    """Set attributes of a mount, and of those below it, without touching others, which may be locked."""
    attributes = Attributes(set=sum(ATTRIBUTES[name] for name in names))
    flags = AT_RECURSIVE if is_recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    check(
        libc.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), size),
        f"mount_setattr {path}",
    )


def leave(uid: int, gid: int) -> None:
    """Enter all namespaces; unless the user is the machine's root, as the guest of a user namespace."""
    if uid == 0 and is_whole_machine():
        check(libc.unshare(NEW_OTHERS), "unshare")
        return
    check(libc.unshare(NEW_USER | NEW_OTHERS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{GUEST} {uid} 1"), ("gid_map", f"{GUEST} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123  # pathlib takes 10 ms to import
            file.write(text)


def is_whole_machine() -> bool:
    """Whether this is the first user namespace: root there is no user that limits count."""
    with open("/proc/self/uid_map") as file:  # noqa: PTH123
        return file.read().split() == ["0", "0", "4294967295"]


def build_root(plan: dict[str, Any]) -> None:
    """Make a file system of what the plan names alone, and let go of the machine's."""
    mount("none", "/", flags=RECURSIVE | PRIVATE)
    mount("tmpfs", NEW_ROOT, "tmpfs", NOSUID | NODEV, "size=1m,mode=0755")
    os.mkdir(NEW_ROOT + OLD_ROOT)  # noqa: PTH102
    check(libc.syscall(PIVOT_ROOT[os.uname().machine], NEW_ROOT.encode(), (NEW_ROOT + OLD_ROOT).encode()), "pivot_root")
    os.chdir("/")
    for target, link in plan["links"]:
        os.makedirs(os.path.dirname(link), exist_ok=True)  # noqa: PTH103, PTH120
        os.symlink(target, link)  # noqa: PTH211
    for path in plan["paths"]:
        bind(path)
        restrict(path, "read-only", "no setuid", "no devices")
    for path in plan["devices"]:
        bind(path)
        restrict(path, "no setuid")
    os.makedirs(plan["scratch"], exist_ok=True)  # noqa: PTH103
    options = f"size={plan['scratch_bytes']},nr_inodes={plan['files']},mode=1777"
    mount("tmpfs", plan["scratch"], "tmpfs", NOSUID | NODEV, options)
    check(libc.umount2(OLD_ROOT.encode(), DETACH), "umount")
    os.rmdir(OLD_ROOT)  # noqa: PTH106
    restrict("/", "read-only", "no setuid", "no devices", is_recursive=False)


def bind(path: str) -> None:
    """Mount a folder or file of the machine at its own path."""
    source = OLD_ROOT + path
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    mount(source, path, flags=BIND | RECURSIVE)


def run_first(command: list[str]) -> int:
    """Be process 1 of the namespace: start the command, collect what dies, and return the command's exit code.

    Whatever still runs when this returns is killed by the kernel.
    """
    child = os.fork()
    if child == 0:
        os.execv(command[0], command)
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(GUEST, GUEST, GUEST)
        os.setresuid(GUEST, GUEST, GUEST)
    die_with_parent()  # after the change of user, which forgets it
    while True:
        found, status = os.wait()
        if found == child:
            return code_of(status)


def code_of(status: int) -> int:
    """Return the exit code as shells and bubblewrap have it: 128 and the signal of a process that was killed."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def die_with_parent() -> None:
    check(libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")


def main(plan: dict[str, Any]) -> int:
    die_with_parent()
    leave(os.getuid(), os.getgid())
    check(libc.sethostname(b"sandbox", 7), "sethostname")
    build_root(plan)
    first = os.fork()
    if first == 0:
        os._exit(run_first(plan["command"]))
    return code_of(os.waitpid(first, 0)[1])


if __name__ == "__main__":
    os._exit(main(json.loads(sys.argv[1])))
