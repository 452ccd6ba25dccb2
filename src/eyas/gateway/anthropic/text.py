"""Blocks of a message or of a tool's result as text; what this model cannot read becomes a line that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from eyas.gateway.anthropic.body import (
    ContentSource,
    DocumentBlock,
    ImageBlock,
    PlainSource,
    SearchResultBlock,
    TextBlock,
    ToolReferenceBlock,
)

__all__ = ["NO_IMAGE", "Readable", "text_of"]

Readable: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock

# A refusal would end a session for good: its client sends the same history again with each request.
NO_IMAGE = "[There is an image here. This model cannot see images.]"
NO_DOCUMENT = "[There is a document here{}. This model reads documents as text only.]"
TOOL = "The tool {} can be called from now on."


def text_of(content: str | Sequence[Readable]) -> str:
    """Return texts joined as they are, and anything else on lines of its own."""
    if isinstance(content, str):
        return content
    text, was_line = "", False
    for block in content:
        is_line = not isinstance(block, TextBlock)
        part = _line(block) if not isinstance(block, TextBlock) else block.text
        if (is_line or was_line) and text and part and not text.endswith("\n"):
            text += "\n"
        text += part
        was_line = is_line
    return text


def _line(block: Readable) -> str:
    match block:
        case TextBlock():
            return block.text
        case ImageBlock():
            return NO_IMAGE
        case DocumentBlock():
            return _document(block)
        case SearchResultBlock():
            return _tagged("search_result", "".join(part.text for part in block.content), block.title, block.source)
        case ToolReferenceBlock():
            return TOOL.format(block.tool_name)


def _document(block: DocumentBlock) -> str:
    if isinstance(block.source, PlainSource):
        return _tagged("document", block.source.data, block.title, block.context)
    if isinstance(block.source, ContentSource):
        return _tagged("document", text_of(block.source.content), block.title, block.context)
    return NO_DOCUMENT.format(f", '{block.title}'" if block.title else "")


def _tagged(name: str, text: str, title: str | None, about: str | None) -> str:
    head = "\n".join(part for part in (title, about) if part)
    lines = [f"<{name}>", *([head, ""] if head else []), text.removesuffix("\n"), f"</{name}>"]
    return "\n".join(lines)
