"""Routers' files, read for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.router.settings.reader import examine
from eyas.router.settings.schema import RouterSettings

__all__ = ["read"]


def read(path: Path, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> RouterSettings:
    """Return the settings of a file in which nothing is wrong."""
    found = examine(path, environ, overrides)
    assert found.problems == ()
    return found.settings
