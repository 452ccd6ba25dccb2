"""The image of our engine: its name, and the files it is built from, the wheel aside.

In a wheel they are next to our data, where `setup.py` puts them, in a checkout at its root.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import eyas
from eyas.base.errors import UserError

if TYPE_CHECKING:  # `setup.py` reads this file without the packages that we depend on
    from eyas.recipes.plan import File

__all__ = ["CACHE", "NAMES", "PACKAGED", "TAG", "files"]

TAG = f"eyas:{eyas.__version__}"
CACHE = "/cache/huggingface"  # HF_HOME of the Dockerfile, of whose volume it is a part
NAMES = ("Dockerfile", "constraints.txt", "constraints-cpu.txt", "constraints-cuda.txt")
PACKAGED = "recipes/data/image"  # below the package
PACKAGE = Path(__file__).parents[2]


def files() -> tuple[File, ...]:
    """Return the files. Raises UserError for a package that was copied without them."""
    from eyas.recipes.plan import File

    folder = PACKAGE / PACKAGED
    if not folder.is_dir():
        folder = PACKAGE.parents[1]
    try:
        return tuple(File(path=name, content=(folder / name).read_text("utf-8")) for name in NAMES)
    except OSError as error:
        raise UserError(f"an image of eyas needs {error.filename}, which is not there; install its wheel") from None
