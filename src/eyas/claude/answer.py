"""Asks `/v1/messages` for one streamed answer, and adds its events up as a strict client does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

__all__ = ["Answer", "Block", "WrongAnswer", "answer"]

TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
FOLLOWS = {
    "": {"message_start"},
    "message_start": {"content_block_start", "message_delta"},
    "content_block_start": {"content_block_delta", "content_block_stop"},
    "content_block_delta": {"content_block_delta", "content_block_stop"},
    "content_block_stop": {"content_block_start", "message_delta"},
    "message_delta": {"message_stop"},
    "message_stop": set[str](),
}
READ_S = 180.0  # of silence, after which Claude Code gives up, too


class WrongAnswer(Exception):
    """A server that failed or that broke the order of events; the message says how."""


@dataclass(kw_only=True, slots=True)
class Block:
    """A block: its type, the tool's name in a call, and the text of its deltas."""

    kind: str
    name: str
    text: str = ""


@dataclass(kw_only=True, slots=True)
class Answer:
    """`first_s` is the time to the first delta."""

    blocks: list[Block] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str | None = None
    first_s: float | None = None

    @property
    def num_input(self) -> int:
        """Tokens of the prompt, cached ones included."""
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        return sum(self.usage.get(name) or 0 for name in names)

    @property
    def num_cached(self) -> int:
        return self.usage.get("cache_read_input_tokens") or 0


def answer(http: httpx.Client, body: Mapping[str, object]) -> Answer:
    """Return the streamed answer to `body`. Raises WrongAnswer."""
    begin = time.perf_counter()
    found = Answer()
    headers = {"anthropic-version": "2023-06-01"}
    try:
        with http.stream(
            "POST", "/v1/messages", json={**body, "stream": True}, headers=headers, timeout=READ_S
        ) as response:
            if response.status_code != 200:
                raise WrongAnswer(f"status {response.status_code}: {_reason(response.read())}")
            _fold(_events(response.iter_lines()), found, begin)
    except httpx.HTTPError as error:
        raise WrongAnswer(f"no whole answer ({error or type(error).__name__})") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise WrongAnswer(f"an event that cannot be read ({type(error).__name__}: {error})") from None
    return found


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


def _fold(events: Iterable[dict[str, Any]], found: Answer, begin: float) -> None:
    """Add up events: message_start, blocks one after the other, message_delta, message_stop; pings anywhere."""
    last = ""
    for event in events:
        kind = event["type"]
        if kind == "error":
            raise WrongAnswer(f"an error in the stream: {event['error']['message']}")
        if kind not in FOLLOWS:
            continue
        if kind not in FOLLOWS[last]:
            raise WrongAnswer(f"{kind} after {last or 'nothing'}")
        last = kind
        if kind == "message_start":
            found.usage |= event["message"]["usage"]
        elif kind == "content_block_start":
            found.blocks.append(Block(kind=event["content_block"]["type"], name=event["content_block"].get("name", "")))
        elif kind == "content_block_delta":
            found.first_s = found.first_s or time.perf_counter() - begin
            found.blocks[-1].text += event["delta"].get(TEXTS.get(event["delta"]["type"], ""), "")
        elif kind == "message_delta":
            found.stop_reason = event["delta"]["stop_reason"]
            found.usage |= event["usage"]
        if kind.startswith("content_block") and event["index"] != len(found.blocks) - 1:
            raise WrongAnswer(f"{kind} of block {event['index']}, and the open one is {len(found.blocks) - 1}")
    if last != "message_stop":
        raise WrongAnswer(f"the stream ends after {last or 'nothing'}")


def _reason(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return " ".join(content.decode(errors="replace").split())[:200]
