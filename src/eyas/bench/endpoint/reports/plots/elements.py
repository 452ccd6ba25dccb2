"""HTML and SVG as trees of ElementTree, whose serializer escapes all text and attributes.

Names of arms, models and prompts come from strangers: they enter a page as text of an element or value of an attribute,
and in no other way.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

__all__ = ["ELLIPSIS", "Child", "Element", "clean", "element", "serialized", "shortened", "text_width"]

Element = ElementTree.Element
Child = Element | str | None
# Characters that no page shows: controls, what HTML forbids, and marks that reverse the order of the text after them.
UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
REPLACEMENT = "\ufffd"
ELLIPSIS = "\u2026"


def clean(text: str) -> str:
    """Return `text` with every character that cannot be shown, or disturbs those around it, replaced by U+FFFD."""
    return UNSHOWABLE.sub(REPLACEMENT, text)


def element(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """Make an element. `class_` is class, `a_b` is a-b; an attribute or child that is None is left out."""
    made = ElementTree.Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), clean(value) if isinstance(value, str) else _number(value))
    last: Element | None = None
    for child in children:
        if isinstance(child, str):
            if last is None:
                made.text = (made.text or "") + clean(child)
            else:
                last.tail = (last.tail or "") + clean(child)
        elif child is not None:
            made.append(child)
            last = child
    return made


def serialized(tree: Element) -> str:
    """Write a tree as HTML. The content of `script` and `style` is written as it is, as HTML wants it."""
    return ElementTree.tostring(tree, encoding="unicode", method="html")


def shortened(text: str, num_chars: int) -> str:
    """Cut a text in its middle to at most `num_chars`: names of arms often differ at their ends."""
    if len(text) <= num_chars:
        return text
    tail = (num_chars - 1) // 2
    return text[: num_chars - 1 - tail] + ELLIPSIS + text[len(text) - tail :]


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in a sans-serif font of `size`; East Asian characters are as wide as high."""
    return sum(1.0 if ord(char) > 0x2E7F else 0.58 for char in text) * size


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
