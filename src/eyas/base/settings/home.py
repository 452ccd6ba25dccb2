"""The folder where eyas keeps what outlives its processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from eyas.base.errors import UserError

__all__ = ["home"]


def home(environ: Mapping[str, str]) -> Path:
    """Return `EYAS_HOME`, or `eyas` below the user's data folder, and create it. Raises UserError if that fails."""
    given = environ.get("EYAS_HOME")
    data = environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    folder = Path(given) if given else Path(data) / "eyas"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}; set EYAS_HOME to a folder of yours") from None
    return folder.absolute()
