"""An oracle for masks: what is generated in a document, read off openai-harmony's own parse of its ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from eyas.train.types import Segment

OPENER = [200006, 173781]  # <|start|>assistant in gpt-oss's vocabulary


@dataclass(frozen=True, kw_only=True)
class ParsedMessage:
    """Ids [begin, end), of which [content, end - 1) are its text."""

    begin: int
    content: int
    end: int
    role: str
    channel: str | None
    recipient: str | None

    @property
    def kind(self) -> Segment:
        if self.recipient is not None:
            return Segment.CALL
        return Segment.REASONING if self.channel == "analysis" else Segment.FINAL


def parsed(harmony: Any, ids: list[int]) -> list[ParsedMessage]:
    """The messages of a document, by openai-harmony's parser, which is fed one id after the other."""
    import openai_harmony

    parser = openai_harmony.StreamableParser(harmony, None)
    found: list[ParsedMessage] = []
    begin = content = 0
    for at, token in enumerate(ids):
        was_header = parser.state == openai_harmony.StreamState.HEADER
        parser.process(token)
        if was_header and parser.state == openai_harmony.StreamState.CONTENT:
            content = at + 1
        if len(parser.messages) > len(found):
            message = parser.messages[-1]
            role = message.author.role.value
            found.append(
                ParsedMessage(
                    begin=begin,
                    content=content,
                    end=at + 1,
                    role=role,
                    channel=message.channel,
                    recipient=message.recipient if role == "assistant" else None,
                )
            )
            begin = at + 1
    assert begin == len(ids), "a document ends with a whole message"
    return found


def expected_masks(harmony: Any, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Runs and segments as openai-harmony's messages say, CODE left as the segment that it is part of.

    Generated are the assistant's messages since the last finished turn. A generation begins behind `<|start|>assistant`
    wherever the message before is not the assistant's, or is a call, at which every server stops.
    """
    messages = parsed(harmony, ids)
    finished = [i for i, m in enumerate(messages[:-1]) if m.role == "assistant" and m.channel == "final"]
    first = finished[-1] + 1 if finished else 0
    runs, segments = np.full(len(ids), -1), np.full(len(ids), Segment.GIVEN)
    run, before = -1, None
    for message in messages[first:]:
        if message.role == "assistant":
            begin = message.begin
            if before is None or before.role != "assistant" or before.recipient is not None:
                assert ids[begin : begin + 2] == OPENER
                run, begin = run + 1, begin + 2
            runs[begin : message.end] = run
            segments[begin : message.end] = Segment.HEADER
            segments[message.content : message.end - 1] = message.kind
        before = message
    return runs, segments
