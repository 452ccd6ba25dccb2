"""Stall pressure for real: a process that thrashes in a small control group makes the router unload what is idle."""

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.router.support.pooled import Ballast, pooled, write_file

LIMIT_MIB, FILE_MIB = 64, 300
GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))  # version 1, version 2
FILES = {"memory.limit_in_bytes": str(LIMIT_MIB << 20), "memory.max": str(LIMIT_MIB << 20), "memory.swap.max": "0"}
# Reading a file again and again that is larger than the group may cache stalls at every page.
THRASH = """
import mmap, os, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    while True:
        for at in range(0, len(pages), 4096):
            pages[at]
"""


@contextmanager
def thrashing(folder):
    """Processes in a group of LIMIT_MIB that read FILE_MIB. Skips the test where no group can be made."""
    root = next(
        (one for one in GROUPS if (one / "cgroup.procs").exists() and one.joinpath("tasks").exists()), GROUPS[1]
    )
    group = root / f"eyas-test-{os.getpid()}"
    if not Path("/proc/pressure/memory").exists():
        pytest.skip("this kernel has no /proc/pressure/memory")
    try:
        group.mkdir()
        limits = [name for name in FILES if (group / name).exists()]
        assert limits, "no memory controller"
        for name in limits:
            with suppress(OSError):
                (group / name).write_text(FILES[name])
    except (OSError, AssertionError) as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    file = folder / "file"
    file.write_bytes(os.urandom(1 << 20) * FILE_MIB)
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # else the pages belong to this process's group
    os.close(descriptor)
    processes = [subprocess.Popen([sys.executable, "-c", THRASH, str(file)]) for _ in range(2)]
    try:
        for process in processes:
            (group / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break


@pytest.mark.slow
def test_stalls_unload_what_is_idle(lab, tmp_path):
    path = write_file(lab.tmp, [Ballast("a", 20)], 4096, lab.journal)

    async def main():
        async with pooled(path) as box:
            assert (await box.ask("a"))[0] == 200
            assert box.loaded() == {"a"}
            with thrashing(tmp_path):
                await box.until(lambda: box.notes("unload") == ["a"])
            changes = [text for text in box.told() if text.startswith("pressure")]
            assert any("-> critical" in text or "-> emergency" in text for text in changes)
            assert "stalls" in "".join(changes)
            print("\n", *changes, sep="\n")

    asyncio.run(main())
