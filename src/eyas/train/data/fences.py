"""Finds the code between the ``` fences of a text."""

from __future__ import annotations

__all__ = ["code_spans"]

FENCE = b"```"


def code_spans(text: bytes) -> list[tuple[int, int]]:
    """Return (start, end) in bytes of what stands between fences, ascending; the lines of the fences do not belong.

    A fence is a line that begins with three backticks or more, behind any indentation, since lists indent their code.
    The closing one has no fewer and nothing else; without it, code ends with the text (CommonMark 0.31, 4.5).
    """
    spans: list[tuple[int, int]] = []
    at, begin, width = text.find(FENCE), None, 0
    while at >= 0:
        line = text.rfind(b"\n", 0, at) + 1
        newline = text.find(b"\n", at)
        end = len(text) if newline < 0 else newline
        rest = text[at:end].lstrip(b"`")
        num = end - at - len(rest)
        if not text[line:at].strip(b" \t"):  # the first thing of its line
            if begin is None and b"`" not in rest:
                begin, width = min(end + 1, len(text)), num
            elif begin is not None and num >= width and not rest.strip():
                spans.append((begin, line))
                begin = None
        at = text.find(FENCE, end)
    if begin is not None:
        spans.append((begin, len(text)))
    return spans
