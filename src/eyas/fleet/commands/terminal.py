"""Makes text from elsewhere (logs, names) safe for a terminal: no sequences that move, colour or answer."""

from __future__ import annotations

import re

__all__ = ["plain"]

# ECMA-48: control sequences, and strings up to their end (titles, clipboards)
SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain(text: str) -> str:
    """Return `text` without escape sequences; other control characters but tab and line feed become `?`."""
    return CONTROLS.sub("?", SEQUENCES.sub("", text))
