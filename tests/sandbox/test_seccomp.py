"""The filter: numbers are the kernel's own, and each call of the list is refused."""

import asyncio
import os
import re
import struct
from pathlib import Path

import pytest

from eyas.base.errors import UserError
from eyas.sandbox.sandbox import Sandbox
from eyas.sandbox.seccomp import CLONE, CLONE3, DENIED, SOCKETS, filter_for
from eyas.sandbox.ways import NAMESPACES

HEADERS = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")
OTHERS = {"clone": CLONE, "clone3": CLONE3, "socket": SOCKETS[0], "socketpair": SOCKETS[1]}
CALL_ALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {calls}.items():
    ctypes.set_errno(0)
    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    if (result, ctypes.get_errno()) != (-1, 1): print(name, result, os.strerror(ctypes.get_errno()))
print("all were tried")
"""


@pytest.mark.parametrize(("column", "header"), list(enumerate(HEADERS)))
def test_numbers_are_those_of_the_kernels_headers(column, header):
    if not Path(header).is_file():
        pytest.skip(f"{header} is not installed (linux-libc-dev)")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", Path(header).read_text(), re.MULTILINE)
    known = {name: int(number) for name, number in found}
    ours = {name: numbers[column] for name, numbers in (DENIED | OTHERS).items()}
    assert {name: known.get(name) for name in ours} == ours


def test_each_call_of_the_list_is_refused(ways):
    column = 0 if os.uname().machine == "x86_64" else 1
    calls = {name: numbers[column] for name, numbers in DENIED.items() if numbers[column] is not None}
    outcome = asyncio.run(Sandbox(ways(NAMESPACES), NAMESPACES).run(CALL_ALL.format(calls=calls)))
    assert outcome.text == "all were tried\n"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_stays_inside(machine):
    program = [struct.unpack_from("<HBBI", filter_for(machine), at) for at in range(0, len(filter_for(machine)), 8)]
    assert len(program) < 4096, "BPF_MAXINSNS"
    for at, (code, if_true, if_false, _) in enumerate(program):
        if code & 7 == 5:  # BPF_JMP
            assert at + 1 + max(if_true, if_false) < len(program)
    assert program[-1] == (6, 0, 0, 0x7FFF0000)


def test_other_machines_are_refused():
    with pytest.raises(UserError, match="no Python sandbox for riscv64 machines"):
        filter_for("riscv64")
