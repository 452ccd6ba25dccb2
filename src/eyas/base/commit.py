"""The commit that this package was made from: written into a wheel when it is built, asked of git in a checkout."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import eyas

__all__ = ["FILE_NAME", "commit", "commit_of", "version_text"]

PACKAGE = Path(__file__).parents[1]
FILE_NAME = "COMMIT"  # inside the package of a wheel; `setup.py` writes it
GIT_TIMEOUT_S = 10
NUM_DIGITS = 12
ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set for another repository where a git hook runs this code


@cache
def commit() -> str | None:
    """Return 12 hexadecimal digits, followed by `-dirty` where the files differ from that commit; None if not known."""
    try:
        return (PACKAGE / FILE_NAME).read_text("ascii").strip() or None
    except FileNotFoundError:
        return commit_of(PACKAGE)


def commit_of(package: Path) -> str | None:
    """Return the commit of the checkout that `package` belongs to, as `commit()` does, editable installs included.

    None without git, outside a checkout, and for a package inside another project's checkout without being tracked
    there, such as a virtual environment's. Tracked files count as changed anywhere, new ones inside the package.
    """
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        name = _git(package, "rev-parse", f"--short={NUM_DIGITS}", "HEAD")
        changed = _git(package, "status", "--porcelain", "--untracked-files=no")
        new = _git(package, "ls-files", "--others", "--exclude-standard", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}-dirty" if changed or new else name


def _git(folder: Path, *command: str) -> str:
    """Return what git prints. It takes no locks, so another git at work is not disturbed."""
    environ = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    done = subprocess.run(
        ["git", "-C", str(folder), *command],
        env=environ | {"GIT_OPTIONAL_LOCKS": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=GIT_TIMEOUT_S,
    )
    return done.stdout.strip()


def version_text() -> str:
    """Return the version as users read it, e.g. `0.1.0 (commit 29127a8c0ffe)`."""
    name = commit()
    return eyas.__version__ + (f" (commit {name})" if name else "")
