"""Files that tests compile, kept for other tests, processes and runs of the same sources."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def built_once(folder: str, name: str, sources: Iterable[Path], options: object, build: Callable[[Path], None]) -> Path:
    """Return the file `name` of the texts of `sources` and of `options`; `build` writes it where there is none yet.

    The folder that `build` writes to is its own, and goes afterwards.
    """
    # Of what is compiled, not of where it lies: another checkout of the same source need not build again.
    key = hashlib.sha256(repr((options, [path.read_bytes() for path in sources])).encode()).hexdigest()[:24]
    kept = Path(tempfile.gettempdir()) / f"eyas-{folder}-{os.getuid()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    stem, dot, suffix = name.partition(".")
    path = kept / f"{stem}-{key}{dot}{suffix}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            built = Path(scratch) / path.name
            build(built)
            built.replace(path)
    return path
