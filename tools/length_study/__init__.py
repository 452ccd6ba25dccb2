"""Studies of heads on a GPU. Modules of the demo's training are found by their plain names, as they find each other."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "demo"), str(Path(__file__).parents[1])]
