"""Scripts are imported by their plain names, as those of the demo model import each other."""

import sys
from pathlib import Path

from tests.base.conftest import harmony, ranks  # noqa: F401 - fixtures

TOOLS = Path(__file__).parents[2] / "tools"
sys.path[:0] = [str(TOOLS / "demo"), str(TOOLS)]
