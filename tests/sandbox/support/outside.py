"""What a test sees from outside of the programs that it runs."""

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["SECRET", "left_behind", "marked", "marker"]

SECRET = "the secret of this machine"


def marker() -> str:
    """A word that only programs of this process of the tests have."""
    return f"eyas-sandbox-test-{os.getpid()}"


def marked(code: str) -> str:
    """A program with the marker at its end, so that lines keep their numbers."""
    return f"{code}\n# {marker()}"


def left_behind() -> list[Path]:
    """Processes that still run a marked program."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[0] == b"python" and marker() in (process / "root/tmp/main.py").read_text(errors="replace"):
                found.append(process)
    return found
