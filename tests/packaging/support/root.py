"""A fresh Debian to run commands in, as a build of an image does: a file system of its own, this machine's network.

It stands in for the official Python image: there Python is newer and built from source, here it is Debian's.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SUITE = "bookworm"
PACKAGES = "ca-certificates,python-is-python3,python3-pip"
FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")  # of this machine
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT")
ENTER = """\
set -eu
root=$1 user=$2 folder=$3 local=$4
shift 4
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
[ -z "$local" ] || { mkdir -p "$root$local"; mount --bind -o ro "$local" "$root$local"; }
# The signal at unshare's end is lost with a change of user, so process 1 keeps its own.
chroot --userspec="$user" "$root" /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$folder" "$@" || exit $?
exit 0
"""


@dataclass(frozen=True, slots=True)
class Root:
    folder: Path
    pip: Mapping[str, str]  # where this machine's pip looks for packages, as variables
    local: str  # a folder of this machine that they name; "" for none

    def command(self, argv: Sequence[str], *, user: str = "0:0", folder: str = "/") -> list[str]:
        """`argv` as a process of the root; it and all that it starts end with the command."""
        enter = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER]
        return [*enter, "sh", str(self.folder), user, folder, self.local, *argv]

    def processes(self) -> list[Path]:
        """Those that run in it, as folders of /proc."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if (process / "root").readlink() == self.folder:
                    found.append(process)
        return found

    def environ(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Nothing of this process but the way to packages."""
        return {"PATH": PATH, "HOME": "/root", **self.pip, **variables}


def make_root(folder: Path) -> Root:
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, folder]
    done = subprocess.run(command, env=os.environ | {"PATH": PATH}, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    folder.chmod(0o755)  # users other than root are in it, too
    (marker,) = folder.glob("usr/lib/python3*/EXTERNALLY-MANAGED")
    marker.unlink()  # the Python of the image is pip's own
    for name in FILES:
        if Path(name).is_file():
            shutil.copy(name, f"{folder}{name}")
    return Root(folder, *_pip())


def _pip() -> tuple[dict[str, str], str]:
    """What pip was told on this machine, and the folder that it was told of."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = {name: os.environ[name] for name in CERTIFICATES if name in os.environ}
    for name, value in re.findall(r"^[\w:]+\.([\w-]+)='(.*)'$", told.stdout, re.MULTILINE):
        if name != "constraint":  # a file that the root lacks; the Dockerfile has constraints of its own
            found[f"PIP_{name.replace('-', '_').upper()}"] = value.replace("\\n", " ")
    folders = {f"/{path.split('/')[1]}" for path in re.findall(r"(?:^|\s|file://)(/[^\s]+)", " ".join(found.values()))}
    folders -= {"/etc"}  # certificates, copied
    assert len(folders) < 2, folders
    return found, next(iter(folders), "")
