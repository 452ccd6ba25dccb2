"""The text of system prompts, without the line by which Claude Code marks its requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from eyas.gateway.anthropic.body import TextBlock

__all__ = ["system_text"]

# It differs from conversation to conversation, and stands in front of everything that they share.
# At times the prompt follows on the same line. https://github.com/ggml-org/llama.cpp/pull/21793
ATTRIBUTION = re.compile(r"\Ax-anthropic-billing-header:(?:(?!You are )[^\n])*\n?")


def system_text(content: str | Sequence[TextBlock]) -> str | None:
    """Return the text of a system prompt, None if nothing is left of it."""
    texts = [content] if isinstance(content, str) else [block.text for block in content]
    kept = [ATTRIBUTION.sub("", text) for text in texts]
    text = "".join(kept)
    return text if text or kept == texts == [""] else None
