"""Without a sandbox nothing runs, and one line says why and what to do."""

import os
import shutil
import subprocess
import sys

import pytest

from eyas.sandbox.refusal import refusal

LINUX = {"/proc/sys/kernel/osrelease": "6.8.0-31-generic"}
FAILED = {"user namespaces": "PermissionError: [Errno 1] unshare: Operation not permitted"}
CASES = [
    ({}, False, "run on Linux alone"),
    ({"/proc/sys/kernel/osrelease": "5.4.0-1-amd64"}, True, "it takes Linux 5.14 or newer, and this is 5.4.0-1-amd64"),
    (LINUX, False, "install bubblewrap 0.7 or newer"),
    (LINUX, True, "allow user namespaces to this user"),
    (LINUX | {"/proc/sys/user/max_user_namespaces": "0"}, False, "as root: sysctl -w user.max_user_namespaces=10000"),
    (LINUX | {"/proc/sys/kernel/unprivileged_userns_clone": "0"}, True, "kernel.unprivileged_userns_clone=1"),
    (LINUX | {"/proc/sys/kernel/unprivileged_userns_clone": "1"}, False, "install bubblewrap"),
    (LINUX | {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, False, "unprivileged_userns=0"),
    (LINUX | {"/.dockerenv": ""}, False, "--security-opt seccomp=unconfined"),
]


@pytest.mark.parametrize(("files", "has_bubblewrap", "says"), CASES)
def test_the_refusal_says_what_to_do(files, has_bubblewrap, says):
    text = refusal(FAILED, has_bubblewrap=has_bubblewrap, read=files.get)
    assert text.startswith("there is no sandbox for Python on this machine (user namespaces: PermissionError")
    assert says in text and "\n" not in text


def test_a_machine_without_user_namespaces_is_refused():
    """The kernel's own refusal: in a namespace that allows no other below it."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--user", "true"], check=False).returncode:
        pytest.skip("no user namespaces here, so none in which there are none")
    forbid = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    ask = [sys.executable, "-m", "eyas", "ask", "http://127.0.0.1:9", "--python", "1 + 1"]
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *ask]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("eyas: error: there is no sandbox for Python on this machine (")
    assert "user namespaces: OSError: [Errno 28] unshare: No space left on device" in done.stderr
    assert "as root: sysctl -w user.max_user_namespaces=10000" in done.stderr and done.stderr.count("\n") == 1
