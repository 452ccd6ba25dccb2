"""Writes what `eyas plan` says for six boxes into docs/plan.md: `python tools/plan_screens.py`.

A test checks that they are up to date.
"""

from __future__ import annotations

from pathlib import Path

from eyas.recipes.planning.ask import Ask
from eyas.recipes.planning.planner import make_plan
from eyas.recipes.planning.screen import screen

__all__ = ["page"]

PAGE = Path(__file__).parents[1] / "docs" / "plan.md"
BEGIN, END = "<!-- screens: python tools/plan_screens.py -->", "<!-- end of screens -->"
ASKED = {
    "gpt-oss-120b --on spark": Ask(model="gpt-oss-120b", on="spark"),
    "gpt-oss-120b --on 2xspark": Ask(model="gpt-oss-120b", on="2xspark"),
    "gpt-oss-120b --on rtx-pro-6000": Ask(model="gpt-oss-120b", on="rtx-pro-6000"),
    "gpt-oss-120b --on h200 --concurrency 1": Ask(model="gpt-oss-120b", on="h200", concurrency=1),
    "gpt-oss-120b --on 8xb200 --for claude-code": Ask(model="gpt-oss-120b", on="8xb200", purpose="claude-code"),
    "gpt-oss-20b --on mac": Ask(model="gpt-oss-20b", on="mac"),
}


def page(text: str) -> str:
    """Return the page `text` with the screens as they are now."""
    shown = [f"```\n$ eyas plan {words}\n{screen(make_plan(ask))}```\n" for words, ask in ASKED.items()]
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n" + "\n".join(shown) + f"\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
