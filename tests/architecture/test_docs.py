"""The documents agree with the code."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_pages_are_fresh():
    """The table of packages and rooms, and the list of files."""
    spec = importlib.util.spec_from_file_location("structure", ROOT / "tools" / "structure.py")
    structure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(structure)
    for page, text in structure.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run python tools/structure.py"
