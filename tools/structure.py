"""Writes the table of packages in docs/structure.md, and docs/files.md with one line for each file.

`python tools/structure.py`. The table comes from tests/architecture/rooms.py, the lines from the modules' docstrings; a
test checks that both are up to date.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

__all__ = ["pages"]

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

STRUCTURE, FILES = ROOT / "docs" / "structure.md", ROOT / "docs" / "files.md"
BEGIN, END = "<!-- packages: python tools/structure.py -->", "<!-- end of packages -->"
HEADER = """# Files

One line for each file, from its docstring: `python tools/structure.py`. The map is `structure.md`.
"""
FOLDERS = ("src/eyas", "tools")


def first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def file_list() -> str:
    lines = [HEADER.rstrip()]
    for top in FOLDERS:
        for folder in sorted({path.parent for path in (ROOT / top).rglob("*.py")}):
            init = folder / "__init__.py"
            lines += ["", f"## {folder.relative_to(ROOT)}/", ""]
            lines += [first_sentence(init), ""] if init.exists() else []
            lines += ["| file | what it does |", "|---|---|"]
            for path in sorted(folder.glob("*.py")):
                if path != init:
                    lines.append(f"| `{path.name}` | {first_sentence(path).replace('|', '&#124;')} |")
            if lines[-1] == "|---|---|":
                del lines[-3:]
    return "\n".join(lines) + "\n"


def package_table() -> str:
    from tests.architecture.rooms import PACKAGES

    lines = ["| package | knows | rooms, from the ground up | may import | libraries |", "|---|---|---|---|---|"]
    for name, package in PACKAGES.items():
        floors = " < ".join(", ".join(rooms) for rooms in package.floors) or "-"
        ours = ", ".join(package.imports) or "nothing"
        if package.through:
            gates = ", ".join(f"`{module.replace('.', '/')}.py`" for module in package.through)
            ours += f"; {', '.join(package.late)} through {gates}"
        libraries = ", ".join(package.libraries) or "none"
        lines.append(f"| `{name}` | {package.knows} | {floors} | {ours} | {libraries} |")
    lines.append(
        "| top level | the commands; `serve.py` alone joins engine and gateway | - | everything, late | none |"
    )
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """The two pages as they should be."""
    before, rest = STRUCTURE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    return {STRUCTURE: f"{before}{BEGIN}\n{package_table()}\n{END}{after}", FILES: file_list()}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
