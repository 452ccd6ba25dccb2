"""The documents agree with the code."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_list_of_files_is_fresh():
    spec = importlib.util.spec_from_file_location("structure", ROOT / "tools" / "structure.py")
    structure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(structure)
    page = structure.PAGE.read_text(encoding="utf-8")
    assert structure.updated(page) == page, "run: python tools/structure.py"
