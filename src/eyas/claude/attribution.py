"""Asks whether a server's cache sees past Claude Code's attribution line, which differs between conversations.

The line stands in front of the system prompt, so that a server that keeps it finds nothing of the prompt behind it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import httpx

from eyas.claude.answer import Answer, answer

__all__ = ["CachedTokens", "cached_behind_line"]

LINES = 120  # some 1,800 tokens: more than the blocks that engines cache
LINE = "x-anthropic-billing-header: cc_version=2.1.330.{}; cc_entrypoint=cli; cch={};"


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedTokens:
    """Tokens of a prompt that came from the cache: sent again as it was, and with another line; and all of them."""

    same: int
    other_line: int
    total: int


def cached_behind_line(http: httpx.Client, model: str) -> CachedTokens:
    """Send one prompt three times, the last time with another attribution line. Raises WrongAnswer."""
    nonce = secrets.token_hex(8)
    text = "".join(f"{nonce}: rule {number} of a text to be read once.\n" for number in range(LINES))
    lines = [LINE.format(secrets.token_hex(2)[:3], secrets.token_hex(3)[:5]) for _ in range(2)]
    _ask(http, model, lines[0], text)
    same = _ask(http, model, lines[0], text)
    other = _ask(http, model, lines[1], text)
    return CachedTokens(same=same.num_cached, other_line=other.num_cached, total=same.num_input)


def _ask(http: httpx.Client, model: str, line: str, text: str) -> Answer:
    system = [{"type": "text", "text": line}, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": "Say hello."}]
    return answer(http, {"model": model, "system": system, "messages": messages, "max_tokens": 16})
