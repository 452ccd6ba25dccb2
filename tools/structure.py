"""Writes the list of files in docs/structure.md from the first line of each module's docstring.

`python tools/structure.py` rewrites the section between the markers; a test checks that it is up to date.
"""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["PAGE", "updated"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "structure.md"
BEGIN, END = "<!-- files: python tools/structure.py -->", "<!-- end of files -->"
FOLDERS = ("src/eyas", "tools")


def first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def file_list() -> str:
    lines = []
    for top in FOLDERS:
        folders = sorted({path.parent for path in (ROOT / top).rglob("*.py")})
        for folder in folders:
            lines += ["", f"**{folder.relative_to(ROOT)}/**", "", "| file | what it does |", "|---|---|"]
            for path in sorted(folder.glob("*.py")):
                lines.append(f"| `{path.name}` | {first_sentence(path).replace('|', '&#124;')} |")
    return "\n".join(lines)


def updated(page: str) -> str:
    """The page with its list of files made anew."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{file_list()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
