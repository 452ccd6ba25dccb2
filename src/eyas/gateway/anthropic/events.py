"""Deltas of an answer as events of a message: blocks that open, grow and close, one after the other."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from eyas.base.types import FinishReason
from eyas.gateway.anthropic.history import UNPARSED
from eyas.gateway.turn.delta import Delta, Kind, Piece

__all__ = ["Blocks", "ContentBlock", "Event", "StopReason", "event_name", "fold", "stop_of"]

SIGNATURE = "eyas"  # clients send reasoning back with it; it says nothing and is not checked

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextContent(Struct, kw_only=True, tag="text"):
    text: str = ""


class ThinkingContent(Struct, kw_only=True, tag="thinking"):
    thinking: str = ""
    signature: str = ""


class ToolUseContent(Struct, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] = {}


ContentBlock: TypeAlias = TextContent | ThinkingContent | ToolUseContent


class TextDelta(Struct, kw_only=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, kw_only=True, tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, kw_only=True, tag="signature_delta"):
    signature: str


class InputDelta(Struct, kw_only=True, tag="input_json_delta"):
    partial_json: str


class BlockStart(Struct, kw_only=True, tag="content_block_start"):
    index: int
    content_block: ContentBlock


class BlockDelta(Struct, kw_only=True, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Struct, kw_only=True, tag="content_block_stop"):
    index: int


Event: TypeAlias = BlockStart | BlockDelta | BlockStop


class Blocks:
    """Turns deltas into events. Each message of the model is a block; a text block begins with its first text."""

    def __init__(self) -> None:
        self.has_call = False
        self._index = -1
        self._open: Piece | None = None  # a piece of the message that the open block has

    def add(self, delta: Delta) -> list[Event]:
        """Return the events of one delta; the last delta closes the last block."""
        events: list[Event] = []
        for piece in delta.pieces:
            if self._open is None or piece.message != self._open.message:
                if not piece.text and piece.kind is not Kind.CALL:
                    continue
                events += self._close()
                events.append(self._begin(piece))
            if piece.text:
                events.append(BlockDelta(index=self._index, delta=_delta(piece)))
        if delta.finish is not None:
            events += self._close()
        return events

    def _begin(self, piece: Piece) -> Event:
        self._open = piece
        self._index += 1
        block: ContentBlock
        if piece.kind is Kind.CALL:
            self.has_call = True
            block = ToolUseContent(id=f"toolu_{uuid.uuid4().hex}", name=piece.name or "")
        else:
            block = ThinkingContent() if piece.kind is Kind.REASONING else TextContent()
        return BlockStart(index=self._index, content_block=block)

    def _close(self) -> list[Event]:
        was_open, self._open = self._open, None
        if was_open is None:
            return []
        events: list[Event] = [BlockStop(index=self._index)]
        if was_open.kind is Kind.REASONING:
            events.insert(0, BlockDelta(index=self._index, delta=SignatureDelta(signature=SIGNATURE)))
        return events


def _delta(piece: Piece) -> TextDelta | ThinkingDelta | InputDelta:
    if piece.kind is Kind.CALL:
        return InputDelta(partial_json=piece.text)
    return ThinkingDelta(thinking=piece.text) if piece.kind is Kind.REASONING else TextDelta(text=piece.text)


def event_name(event: Struct) -> str:
    """Return the type of an event, which is in its `event:` line, too."""
    return str(event.__struct_config__.tag)


def fold(events: Iterable[Event]) -> list[ContentBlock]:
    """Return the blocks of the events, filled with what their deltas add up to, for a whole answer."""
    blocks: list[ContentBlock] = []
    parts: list[str] = []
    for event in events:
        match event:
            case BlockStart():
                blocks.append(event.content_block)
                parts.clear()
            case BlockDelta(delta=SignatureDelta(signature=signature)):
                assert isinstance(blocks[-1], ThinkingContent)
                blocks[-1].signature = signature
            case BlockDelta(delta=TextDelta(text=text) | ThinkingDelta(thinking=text) | InputDelta(partial_json=text)):
                parts.append(text)
            case BlockStop():
                _fill(blocks[-1], "".join(parts))
    return blocks


def _fill(block: ContentBlock, text: str) -> None:
    match block:
        case TextContent():
            block.text = text
        case ThinkingContent():
            block.thinking = text
        case ToolUseContent():
            block.input = input_of(text)


def input_of(text: str) -> dict[str, Any]:
    """Return the input of a call: what is no JSON object comes in Claude Code's form, which histories may have."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {UNPARSED: {"raw": text, "len": len(text)}}


def stop_of(last: Delta, *, has_call: bool, max_tokens: int) -> tuple[StopReason, str | None]:
    """Return why an answer ended, and the stop string that ended it."""
    if last.finish is FinishReason.LENGTH:
        num_tokens = 0 if last.totals is None else last.totals.num_tokens
        return ("max_tokens" if num_tokens >= max_tokens else "model_context_window_exceeded"), None
    if isinstance(last.stop_reason, str):
        return "stop_sequence", last.stop_reason
    return ("tool_use" if has_call else "end_turn"), None
