"""A checkout of what is here, changes included, that may be moved away, and the wheel that was built from it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.packaging.support.root import Root, make_root

from tools import wheel as tool

ROOT = Path(__file__).parents[2]


def git(folder: Path, *command: str) -> list[str]:
    """Its output, split at NUL."""
    done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\0\n").split("\0")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    folder = tmp_path_factory.mktemp("packaging") / "checkout"
    git(ROOT, "clone", "--quiet", "--depth=1", "--no-tags", f"file://{ROOT}", folder)
    for name in git(ROOT, "ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        elif name:
            (folder / name).unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="session")
def wheel(checkout) -> Path:
    """Beside it lie what an older build left, and it: none of that may get into the wheel."""
    old = checkout / "build" / "lib" / "eyas" / "removed.py"
    old.parent.mkdir(parents=True)
    old.touch()
    (checkout / "dist").mkdir()
    (checkout / "dist" / "eyas-0.0.1-py3-none-any.whl").touch()
    return tool.build(checkout)


@pytest.fixture(scope="session")
def fresh_root(tmp_path_factory) -> Iterator[Root]:
    """A Debian with Python and pip, made by debootstrap."""
    if os.geteuid() != 0:
        pytest.skip("chroot and debootstrap need root")
    for program in ("debootstrap", "unshare", "chroot"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("root")
    try:
        yield make_root(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
