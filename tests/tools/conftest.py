"""The demo model's scripts import each other by their plain names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "demo"))
